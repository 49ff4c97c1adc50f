"""When gradients are idle: from the optimizer's end over the op that zeroes one to the op that adds to it.

Computed for all gradients at once, for a long run zeroes each of them in every iteration.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.capture.schema import ACCESSES, NONE, OPTIMIZER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.columns import IntArray

_ZEROING: Final = ("aten.zero_", "aten._foreach_zero_")


class Spans(NamedTuple):
    """Idle times, in the order of the storages: the events at which each begins and ends, and the op that zeroes."""

    storage: IntArray
    start: IntArray
    end: IntArray
    zero_op: IntArray


class IdleGradients:
    """The idle times of all gradients of a capture."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def of(self, storages: Iterable[int]) -> Spans:
        """Return the idle times of some storages."""
        chosen = np.isin(self._spans.storage, list(storages))
        return Spans(*(column[chosen] for column in self._spans))

    @cached_property
    def _spans(self) -> Spans:
        """The idle times: ops use the storage before and after the op that zeroes it."""
        storage, op = self._uses()
        of_ops = self._facts.capture.tables["ops"]["name"]
        names = np.unique(of_ops)  # without the inverse, which takes 16 bytes for each of millions of ops
        texts = self._facts.capture.text(names)
        zeroing = [text.startswith(_ZEROING) for text in texts]
        at = np.flatnonzero(np.isin(of_ops[op], names[np.array(zeroing, dtype=bool)]))
        at = at[(at > 0) & (at < len(op) - 1)]
        at = at[(storage[at - 1] == storage[at]) & (storage[at + 1] == storage[at])]
        return Spans(storage[at], *self._events(op[at - 1], op[at], op[at + 1]), op[at])

    def _uses(self) -> tuple[IntArray, IntArray]:
        """Return the storages of gradients and the ops that use them, by storage and op, each pair once."""
        facts, uses = self._facts, self._facts.capture.tables["uses"]
        is_gradient = facts.categories.category.isin(["gradient"])
        storages = facts.allocations.storage[is_gradient]
        is_wanted = np.zeros(len(is_gradient) + 1, dtype=bool)  # the last entry is for -1, "no storage"
        is_wanted[storages[storages != NONE]] = True
        chosen = np.flatnonzero(is_wanted[uses["storage"]] & (uses["access"] != ACCESSES.index("output")))
        storage, op = uses["storage"][chosen], uses["op"][chosen]
        order = np.lexsort((op, storage))
        storage, op = storage[order], op[order]
        is_new = np.ones(len(op), dtype=bool)
        is_new[1:] = (np.diff(storage) != 0) | (np.diff(op) != 0)
        return storage[is_new], op[is_new]

    def _events(self, before: IntArray, zeroing: IntArray, after: IntArray) -> tuple[IntArray, IntArray]:
        """Return the events between which gradients are idle.

        The gradient that is added goes right after the op that adds it; without the old one it would stay.
        """
        ops, times_ns = self._facts.capture.tables["ops"], self._facts.curve.time_ns
        last_op = len(ops["op"]) - 1
        outside = np.append(np.flatnonzero(ops["phase"] != OPTIMIZER), last_op + 1)
        stepped = outside[np.searchsorted(outside, before + 1)]  # the first op that is not the optimizer's
        start_op = np.where(stepped <= zeroing, stepped, before + 1)
        start = np.searchsorted(times_ns, ops["start_ns"][start_op], side="left")
        end = np.searchsorted(times_ns, ops["start_ns"][np.minimum(after + 1, last_op)], side="left")
        return start, np.maximum(start, end)
