"""The name, module and phase of each op of a plan. The planner's graph knows an op by its number only."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memwatch.words.places import short_place
from memwatch.words.storages import short_op

if TYPE_CHECKING:
    from collections.abc import Hashable

    from memwatch.report.source import Reading


class Place(NamedTuple):
    """One op: its name, its module and its phase, empty where unknown."""

    op: str
    module: str
    phase: str
    line: str = ""

    @property
    def where(self) -> str:
        """The module, or the line of the program for an op outside of modules."""
        return self.module or self.line

    def __str__(self) -> str:
        """The place as a phrase, such as `bmm in the backward of blocks.0`."""
        phase = f" in the {self.phase}" if self.phase not in ("", "forward") else ""
        return f"{self.op}{phase} of {self.module}" if self.module else f"{self.op}{phase}"


class Places:
    """The places of a reading's ops; without a reading an op has the name that the graph gives it."""

    def __init__(self, reading: Reading | None = None) -> None:
        self._known: dict[Hashable, Place] = {}
        if reading is not None:
            ops = reading.ops
            columns = (ops[name].astype(object).tolist() for name in ("name", "module", "phase", "own_line"))
            self._known = {
                op: Place(short_op(name), module, phase, short_place(line))
                for op, name, module, phase, line in zip(ops.index.tolist(), *columns, strict=True)
            }

    def of(self, op: Hashable) -> Place:
        """Return the place of an op."""
        return self._known.get(op) or Place(str(op), "", "")
