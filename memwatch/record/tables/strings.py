"""Intern text: each string is stored once and named by a number."""

from __future__ import annotations

import threading


class Strings:
    """Number every distinct text, in order of first sight."""

    __slots__ = ("_first_sight", "_ids", "texts")

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._first_sight = threading.RLock()  # a flush in another thread names things too
        self.texts: list[str] = []

    def __call__(self, text: str) -> int:
        """Return the number of `text`, a new one at first sight."""
        number = self._ids.get(text)
        return self._at_first_sight(text) if number is None else number

    def _at_first_sight(self, text: str) -> int:
        with self._first_sight:
            number = self._ids.get(text)
            if number is None:
                number = self._ids[text] = len(self.texts)
                self.texts += (text,)  # no call: a signal's handler may raise at any
            return number
