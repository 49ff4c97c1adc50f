"""Blocks: which modules to checkpoint, none of them inside another."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.saved_tensors import SavedTensors
    from memwatch.capture.packed import IntArray

_LEAST_SHARE: Final = 1 / 50
"""A block that saves less than this of all saved bytes is left alone."""
_LARGEST_SHARES: Final = (1 / 2, 1 / 8, 1 / 32)
"""A block saves at most this share, if smaller blocks can be had.

What a block saves is alive again when it is computed again, so a block must not be large; and the inputs of small
blocks add up. `memwatch fit` measures the first two of these sizes; to simulate one more costs little.
"""


class SavingModules:
    """The bytes that the modules of a program save for backward, by the tree of modules."""

    def __init__(self, facts: Facts, saved: SavedTensors) -> None:
        tree = facts.places.module_tree
        self._classes = tree.classes
        self._children: dict[int, list[int]] = {}
        for number, parent in enumerate(tree.parents):
            self._children.setdefault(parent, []).append(number)
        calls = facts.capture.tables["calls"]
        self._is_called = np.zeros(len(tree.names), dtype=bool)
        self._is_called[calls["module"]] = True
        # a wrapper's only child has its name: the wrapper is called instead of it
        self._is_called[list(tree.wrapped)] = False
        self._first_call = np.full(len(tree.names), len(calls["module"]), dtype=np.int64)
        np.minimum.at(self._first_call, calls["module"], calls["start_op"])
        self._nbytes = _saved_bytes(facts, saved, len(tree.names))
        for number in reversed(tree.parents_first):
            if tree.parents[number] != NONE:
                self._nbytes[tree.parents[number]] += self._nbytes[number]

    def blocks(self) -> list[list[int]]:
        """Return sets of blocks to try: repeated ones, large ones, and smaller ones; each in the order of calls."""
        roots = self._children.get(NONE, [])
        total = int(self._nbytes[roots].sum())
        sets = [[number for root in roots for number in self._repeated(root)]]
        sets += [
            [number for root in roots for number in self._divide(root, share * total)]
            for share in _LARGEST_SHARES
        ]
        found: list[list[int]] = []
        for blocks in sets:
            saving = [number for number in blocks if self._nbytes[number] >= _LEAST_SHARE * total > 0]
            saving.sort(key=lambda number: int(self._first_call[number]))
            if saving and saving not in found:
                found.append(saving)
        return found

    def _repeated(self, module: int) -> Iterator[int]:
        """Yield the outermost modules that have siblings of the same class."""
        children = self._children.get(module, [])
        counts = Counter(self._classes[child] for child in children if self._is_called[child])
        for child in children:
            if self._is_called[child] and counts[self._classes[child]] > 1:
                yield child
            else:
                yield from self._repeated(child)

    def _divide(self, module: int, most_bytes: float) -> Iterator[int]:
        below = [each for child in self._children.get(module, ()) for each in self._divide(child, most_bytes)]
        if (
            self._is_called[module]
            and self._nbytes[module]
            and (self._nbytes[module] <= most_bytes or not below)
        ):
            yield module
        else:
            yield from below


def _saved_bytes(facts: Facts, saved: SavedTensors, count: int) -> IntArray:
    """Return the bytes that each module saved, without its children, parameters and buffers; a storage counts once."""
    packs = np.flatnonzero((saved.storage != NONE) & ~saved.of_region & (saved.used_op != NONE))
    _, first = np.unique(saved.storage[packs], return_index=True)
    packs = packs[first]
    lasting = facts.categories.category.isin(["parameter", "buffer"])
    packs = packs[~np.isin(saved.storage[packs], facts.allocations.storage[lasting])]
    nbytes: IntArray = np.zeros(count + 1, dtype=np.int64)
    np.add.at(nbytes, saved.module.codes[packs], saved.nbytes[packs])
    return nbytes[:count]
