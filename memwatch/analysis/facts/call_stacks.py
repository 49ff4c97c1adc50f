"""Call stacks: the recorded frames of each stack, and whose code each file is."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.own_code import CodeOwner

if TYPE_CHECKING:
    from memwatch.capture import Capture
    from memwatch.capture.columns import IntArray

_BODY: Final = "<module>"
"""The name that Python gives to the body of a module."""


class Call(NamedTuple):
    """One frame of a call stack."""

    file: str
    line: int
    function: str
    calls_torch: bool  # the program's or an installed package's; False for torch and Python


class CallStacks:
    """The recorded call stacks, looked up by number."""

    def __init__(self, capture: Capture) -> None:
        self._text, self._columns = capture.text, capture.tables["stacks"]
        self._order = np.lexsort((self._columns["depth"], self._columns["stack"]))
        self._numbers = self._columns["stack"][self._order]
        files = capture.text(self._columns["file"])
        self.owner_of_file: dict[str, int] = dict(zip(files, self._columns["owner"].tolist(), strict=True))
        """Whose code each file is, as an index into OWNERS."""

    def frames(self, stack: int) -> list[Call]:
        """Return the frames of a call stack, innermost first."""
        rows, columns = self._rows(stack), self._columns
        return list(
            map(
                Call,
                self._text(columns["file"][rows]),
                columns["line"][rows].tolist(),
                self._text(columns["function"][rows]),
                (columns["owner"][rows] <= CodeOwner.INSTALLED).tolist(),
            )
        )

    def owners(self, stack: int) -> list[CodeOwner]:
        """Return whose code each frame of a call stack is, innermost first."""
        return [CodeOwner(owner) for owner in self._columns["owner"][self._rows(stack)].tolist()]

    def _rows(self, stack: int) -> IntArray:
        start = np.searchsorted(self._numbers, stack)
        return self._order[start : np.searchsorted(self._numbers, stack, side="right")]

    @cached_property
    def files_of_running_modules(self) -> frozenset[str]:
        """The files whose module's body ran ops, or called code that ran ops."""
        bodies = np.array(self._text(self._columns["function"]), dtype=object) == _BODY
        return frozenset(self._text(self._columns["file"][bodies]))

    @property
    def has_program_code(self) -> bool:
        """Whether any recorded frame is the program's own, and not only of torch and installed packages."""
        return bool((self._columns["owner"] == CodeOwner.PROGRAM).any())
