"""Intern text: each string is stored once and named by a number."""

from __future__ import annotations


class Strings:
    """Number every distinct text, in order of first sight."""

    __slots__ = ("_ids", "texts")

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self.texts: list[str] = []

    def __call__(self, text: str) -> int:
        """Return the number of `text`, a new one at first sight."""
        number = self._ids.get(text)
        if number is None:
            number = self._ids[text] = len(self.texts)
            self.texts += (text,)  # no call: a signal's handler may raise at any
        return number
