"""Explain the survivors of a block from its own objects and from known causes, without a search of the whole heap.

A cycle that the block made consists of young objects. To find it or to collect it, the rest of the heap is not
needed. Only young garbage held the memory that such a collection frees.
"""

from __future__ import annotations

import gc
from collections import Counter
from itertools import chain, compress
from typing import TYPE_CHECKING

import numpy as np
import torch

from memwatch._torch.tensors import use_count_of
from memwatch.heap.class_checks import derives
from memwatch.heap.classes import of_classes
from memwatch.heap.ids import ids_of
from memwatch.heap.pause import collect
from memwatch.heap.search import search
from memwatch.heap.snapshot import Snapshot
from memwatch.heap.tensors import quiet, storage_of
from memwatch.leaks.diagnose import (
    Diagnosis,
    HolderSearch,
    explain_unreachable,
    ids_behind,
    storages_of,
)
from memwatch.leaks.kinds import LeakKind
from memwatch.leaks.known_causes import KnownCauses, is_optimizer
from memwatch.leaks.loops import Loops, is_unseen
from memwatch.leaks.reached import Reached

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memwatch.leaks.excuses import Exemptions
    from memwatch.leaks.new_storages import NewStorage
    from memwatch.leaks.survivor import Survivor


class NearbySearch(HolderSearch):
    """Searches the young objects, and the ways to known causes, for the holders of survivors.

    Attributes:
        rest: the survivors that this does not explain.
        deep: True if something that gc does not show, such as a numpy array, holds one of them.
        young: the ids of the young objects.
    """

    def __init__(self, storages: Sequence[NewStorage], exempt: Exemptions, known: KnownCauses) -> None:
        super().__init__(storages, exempt, [], per_call=False, known=known)
        self.rest: list[NewStorage] = []
        self.deep = False
        self._new: set[int] = set()

    def explain(self) -> Diagnosis:
        """Explain what can be explained here, the kinds of leaks included; garbage of young objects is collected."""
        guesses = self._guesses()
        collect(0)
        old: set[int] | None = None
        diagnosis = Diagnosis()
        for made, guess in zip(self._storages, guesses, strict=True):
            held = None if guess is None else (guess.if_kept or guess)
            if not made.alive:
                if guess is not None:
                    guess.kind = LeakKind.CYCLE
                diagnosis.add(guess, reachable=False)
            elif held is not None and self._is_known(held):
                if not (made.certain or id(made.ref()) in self._new):
                    old = self._older_storages() if old is None else old
                if old is None or id(made.ref()) not in old:
                    diagnosis.add(held, reachable=not held.unreachable)
            else:
                self.rest.append(made)
        return diagnosis

    def _is_known(self, guess: Survivor) -> bool:
        """Return True for a storage on a known path or in a known loop with references that gc does not see."""
        if not guess.unreachable:
            return True
        cycle = guess.steps[: guess.cycle_length]
        if not (guess.looped and is_unseen(cycle) and self._known.has_loop(guess.key)):
            return False
        guess.kind = LeakKind.UNCOLLECTABLE
        return True

    def _guesses(self) -> list[Survivor | None]:
        """Return for each survivor the explanation by young objects and known causes alone, or None."""
        roots, along_ways = self._known.walk()
        # no list: it would be listed, and refer to them
        extra = chain(storages_of(self._storages), along_ways)
        with Snapshot(extra, deep=True, roots=roots) as snapshot:
            del along_ways, extra
            self.young = snapshot.young
            if not all(made.certain for made in self._storages):
                self._note_new(snapshot)
            return list(self._nearby(snapshot))

    def _nearby(self, snapshot: Snapshot) -> Iterator[Survivor | None]:
        reached = Reached(snapshot, self._exempt)
        along_ways = search(snapshot, snapshot.root_groups())
        loops = Loops(snapshot, along_ways)
        for made in self._storages:
            position = snapshot.position(made.ref())
            if position < 0:
                yield None
            elif not along_ways.reaches(position):
                loop, way = loops.find(position)
                above = [snapshot.objects[place] for place in way[:-1]]
                # else no tensor that gc lists has it
                is_shown = bool(above) and all(map(gc.is_tracked, above))
                self.deep = self.deep or not (loop.positions or is_shown)
                yield explain_unreachable(snapshot, loops, (loop, way), made)
            elif reached.past_state.reaches(position):
                way = reached.past_state.path(position)
                # The living parameters decide whether an optimizer's state leaks, and this snapshot does not list all
                # of them.
                through_optimizer = any(is_optimizer(snapshot.objects[place]) for place in way)
                yield None if through_optimizer else self.explain_retained(snapshot, way, made)
            else:
                yield None

    def _note_new(self, snapshot: Snapshot) -> None:
        """Note the storages whose owners are all young. No tensor from before the block has them."""
        owners: Counter[int] = Counter()
        with quiet():
            for tensor in filter(snapshot.is_young, snapshot.instances(torch.Tensor)):
                storage = storage_of(tensor)
                if storage is not None:
                    owners[id(storage)] += 1
            for storage in storages_of(self._storages):
                count = use_count_of(storage)
                if count is not None and count <= owners[id(storage)] + 1:  # its Python object is one
                    self._new.add(id(storage))

    def _older_storages(self) -> set[int]:
        tensors = of_classes(gc.get_objects(2), lambda cls: derives(cls, torch.Tensor))
        young = () if self.young is None else self.young
        is_old = ~np.isin(ids_of(tensors), young)
        return ids_behind(compress(tensors, is_old.tolist()))
