"""The timeline of a recording: the event of the live curve at each op, and the live bytes of some allocations."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.columns import IntArray

LAST: Final = np.iinfo(np.int64).max
"""The number of an op after all others."""


class Spike(NamedTuple):
    """Bytes that are alive for a moment in a changed program, between two recorded events."""

    event: int  # the later of the two events
    nbytes: int


class ChangedBytes(NamedTuple):
    """The effect of a change on the live bytes.

    Attributes:
        spared: for each event, the live bytes that the change saves; negative if it adds live bytes.
        spikes: bytes that are alive for a moment between two events.
    """

    spared: IntArray
    spikes: tuple[Spike, ...] = ()


class ChangedModules(NamedTuple):
    """A change of some modules.

    Attributes:
        modules: numbers of the modules in the module tree.
        bytes: the effect of the change on the live bytes.
    """

    modules: tuple[int, ...]
    bytes: ChangedBytes


class Timeline:
    """Conversions between the ops, the events and the live bytes of a recording."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._nodes = facts.capture.tables["ops"]["sequence"]
        self._starts_ns = facts.capture.tables["ops"]["start_ns"]
        self._count = len(facts.curve.live_bytes)

    def event_of(self, op: int) -> int:
        """Return the first event at or after the start of an op."""
        if op >= len(self._starts_ns):
            return self._count - 1
        return int(np.searchsorted(self._facts.curve.time_ns, self._starts_ns[op]))

    def events_of(self, ops: IntArray) -> IntArray:
        """Return the first event at or after the start of each op."""
        starts_ns = self._starts_ns[np.minimum(ops, len(self._starts_ns) - 1)]
        events: IntArray = np.searchsorted(self._facts.curve.time_ns, starts_ns)
        return np.where(ops >= len(self._starts_ns), self._count - 1, events)

    def events_after_nodes(self, ops: IntArray) -> IntArray:
        """Return, for each op, the first event after its autograd node has run: when an op of another node starts."""
        # the first op of each node after the first, and the end
        changes = np.append(np.flatnonzero(np.diff(self._nodes) != 0) + 1, len(self._nodes))
        next_op = changes[np.minimum(np.searchsorted(changes, ops, side="right"), len(changes) - 1)]
        return self.events_of(next_op)

    def bytes_of(self, rows: IntArray) -> IntArray:
        """Return, for each event, the sum of the bytes of these allocations that are alive."""
        allocations = self._facts.allocations
        return self.bytes_within(
            allocations.nbytes[rows], allocations.birth_event[rows], allocations.death_event[rows]
        )

    def bytes_within(self, nbytes: IntArray, start: IntArray, end: IntArray) -> IntArray:
        """Return, for each event, the sum of the byte counts that are alive: from `start` on, until before `end`.

        An `end` of -1 is the end of the recording.
        """
        change = np.zeros(self._count + 1, dtype=np.int64)
        amount = nbytes.astype(np.int64)
        np.add.at(change, np.maximum(start, 0), amount)
        np.subtract.at(change, np.where(end == NONE, self._count, end), amount)
        return np.cumsum(change)[:-1]


def dimensions_of_storages(facts: Facts) -> Callable[[int], list[int]]:
    """Return a function that returns the sizes of the first tensor of a storage: `[8, 64]` for `float32[8, 64]`.

    Unknown sizes are an empty list.
    """
    # read the columns once, because each access to a table decodes the whole column
    shapes, strings = facts.capture.tables["births"]["shape"], facts.strings

    @functools.cache
    def sizes_of(number: int) -> list[int]:
        text = "" if number == NONE else str(strings[number])
        inside = text[text.find("[") + 1 : -1] if text.endswith("]") else ""
        sizes = [size.strip() for size in inside.split(",")]
        return list(map(int, sizes)) if all(size.isdecimal() for size in sizes) else []

    return lambda storage: sizes_of(int(shapes[storage]))
