"""The timeline of a recording: the op of each event of the live curve, and the effect of a change on it."""

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
"""An op after all others."""


class Spike(NamedTuple):
    """Bytes that a changed program has alive for a moment, between two recorded events."""

    event: int  # the event before which they are alive
    nbytes: int


class ChangedBytes(NamedTuple):
    """The effect of a change on the live bytes.

    Attributes:
        spared: per event, the bytes that are not alive with the change; negative if it keeps more.
        spikes: bytes that are alive between events.
    """

    spared: IntArray
    spikes: tuple[Spike, ...] = ()


class ChangedModules(NamedTuple):
    """A change of some modules.

    Attributes:
        modules: their numbers in the module tree.
        bytes: the effect on the live bytes.
    """

    modules: tuple[int, ...]
    bytes: ChangedBytes


class Timeline:
    """Ops and events of a recording in the order of time."""

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
        """Return the event at which the backward node of each op has run: the start of the next op of another node."""
        changes = np.append(np.flatnonzero(np.diff(self._nodes) != 0) + 1, len(self._nodes))
        next_op = changes[np.minimum(np.searchsorted(changes, ops, side="right"), len(changes) - 1)]
        return self.events_of(next_op)

    def bytes_of(self, rows: IntArray) -> IntArray:
        """Return, per event, the bytes of some allocations that are alive."""
        allocations = self._facts.allocations
        return self.bytes_within(
            allocations.nbytes[rows], allocations.birth_event[rows], allocations.death_event[rows]
        )

    def bytes_within(self, nbytes: IntArray, start: IntArray, end: IntArray) -> IntArray:
        """Return, per event, the sum of some byte counts, each from one event on up to another; -1 is the end."""
        change = np.zeros(self._count + 1, dtype=np.int64)
        amount = nbytes.astype(np.int64)
        np.add.at(change, np.maximum(start, 0), amount)
        np.subtract.at(change, np.where(end == NONE, self._count, end), amount)
        return np.cumsum(change)[:-1]


def dimensions_of_storages(facts: Facts) -> Callable[[int], list[int]]:
    """Return a function from a storage to the sizes of the first tensor on it: `[8, 64]` of `float32[8, 64]`.

    The sizes are empty if unknown.
    """
    # each access to a table decodes the column
    shapes, strings = facts.capture.tables["births"]["shape"], facts.strings

    @functools.cache
    def sizes_of(number: int) -> list[int]:
        text = "" if number == NONE else str(strings[number])
        inside = text[text.find("[") + 1 : -1] if text.endswith("]") else ""
        sizes = [size.strip() for size in inside.split(",")]
        return list(map(int, sizes)) if all(size.isdecimal() for size in sizes) else []

    return lambda storage: sizes_of(int(shapes[storage]))
