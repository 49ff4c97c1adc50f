"""Explain surviving storages: which kind of leak, and held by which reference."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from memwatch._torch.storages import owners_of
from memwatch._torch.tensors import TENSOR_DICT
from memwatch.edges import EdgeKind
from memwatch.heap.classes import of_classes
from memwatch.heap.ids import ids_of
from memwatch.heap.names import type_name
from memwatch.heap.paths import Step, steps_of
from memwatch.heap.pause import collect
from memwatch.heap.roots import Root
from memwatch.heap.search import search
from memwatch.heap.snapshot import Snapshot
from memwatch.heap.tensors import is_tensor, mro_of, quiet, storage_of
from memwatch.heap.vertices import describe
from memwatch.leaks.cut import edge_to_cut, entry_step
from memwatch.leaks.exemptions import exempt_edges, is_bounded, is_import, is_torchs_own
from memwatch.leaks.groups import leaks_of
from memwatch.leaks.kinds import LeakKind
from memwatch.leaks.known_causes import KnownCauses, is_optimizer
from memwatch.leaks.known_retainers import state_edges, state_storages
from memwatch.leaks.loops import Loops
from memwatch.leaks.registry import registers_itself
from memwatch.leaks.series import series_of
from memwatch.leaks.survivor import Survivor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from memwatch.heap.roots import Held
    from memwatch.heap.search import Tree
    from memwatch.leaks.exemptions import Exemptions
    from memwatch.leaks.known_retainers import Positions
    from memwatch.leaks.leak import Leak
    from memwatch.leaks.new_storages import NewStorage


_HALF_SEEN: Final = (EdgeKind.TENSOR_HOOKS, EdgeKind.ACCUMULATE_HOOKS)
"""References that gc follows only while nothing in C++ shares the tensor."""


@dataclass(slots=True)
class Diagnosis:
    """What one snapshot of the heap showed.

    Attributes:
        retained: storages that a live root reaches.
        unreachable: storages no root reaches; only a collection tells which kind they are.
    """

    retained: list[Survivor] = field(default_factory=list)
    unreachable: list[Survivor] = field(default_factory=list)

    def add(self, survivor: Survivor | None, *, reachable: bool = True) -> None:
        """Take a survivor, unless its holder is exempt."""
        if survivor is not None:
            (self.retained if reachable else self.unreachable).append(survivor)


def diagnose(
    storages: Sequence[NewStorage],
    exempt: Exemptions,
    *,
    runs: int,
    per_call: bool,
    first_run: int = 1,
    held: Iterable[Held] = (),
    known: KnownCauses | None = None,
) -> list[Leak]:
    """Explain the storages that outlived the runs that made them.

    Args:
        storages: the survivors.
        exempt: references that are no leak.
        runs: how many runs were measured; a leak has survivors of each.
        per_call: True to report bytes and counts per run.
        first_run: index of the first measured run.
        held: what lives on after the runs: the function and its arguments.
        known: the causes that earlier checks found; those found now are added.

    Returns:
        Leaks, largest first.
    """
    known = KnownCauses() if known is None else known
    search_ = _HolderSearch(storages, exempt, list(held), known, per_call=per_call)
    nearby = search_.explain_nearby()
    diagnosis = search_.run()
    if diagnosis is None:  # something holds a survivor that gc does not show
        diagnosis = search_.run(deep=True)
    assert diagnosis is not None
    if diagnosis.unreachable:
        collect()
        for survivor in diagnosis.unreachable:
            survivor.kind = LeakKind.UNCOLLECTABLE if survivor.looped else LeakKind.RETAINED
            if not survivor.storage.alive:
                survivor.kind = LeakKind.CYCLE
            elif survivor.looped:
                known.learn_loop(survivor.key)
        if not per_call:  # held by C++ alone, once: a cache of torch, an open autocast context
            unreachable = diagnosis.unreachable
            diagnosis.unreachable = [each for each in unreachable if each.kind is not LeakKind.RETAINED]
    measured = set(range(first_run, first_run + runs))
    return leaks_of(nearby + diagnosis.retained + diagnosis.unreachable, measured, per_call=per_call)


class _HolderSearch:
    """Searches the heap for the holders of survivors."""

    def __init__(
        self,
        storages: Sequence[NewStorage],
        exempt: Exemptions,
        held: Sequence[Held],
        known: KnownCauses,
        *,
        per_call: bool,
    ) -> None:
        self._storages = storages
        self._exempt = exempt
        self._held = held
        self._known = known
        self._per_call = per_call
        self._young: NDArray[np.int64] | None = None
        self._new: set[int] = set()

    def explain_nearby(self) -> list[Survivor]:
        """Explain what the young objects and the known causes explain, and leave the rest to :meth:`run`.

        A cycle that the block made consists of young objects, so neither its finding nor a collection of them
        needs the rest of the heap. What such a collection frees was held by young garbage alone.
        """
        guesses = self._guesses()
        collect(0)
        old: set[int] | None = None
        found, rest = [], []
        for made, guess in zip(self._storages, guesses, strict=True):
            if not made.alive:
                if guess is not None:
                    guess.kind = LeakKind.CYCLE
                    found.append(guess)
            elif guess is not None and self._is_known(guess):
                if not (made.certain or id(made.ref()) in self._new):
                    old = self._older_storages() if old is None else old
                if old is None or id(made.ref()) not in old:
                    found.append(guess)
            else:
                rest.append(made)
        self._storages = rest
        return found

    def _is_known(self, guess: Survivor) -> bool:
        """Return True for what a known way reaches, and for a known loop through references that gc does not see."""
        if not guess.cycle_length:
            return True
        loop = guess.steps[: guess.cycle_length]
        unseen = any(step.hidden or step.edge.kind in _HALF_SEEN for step in loop)
        if not (unseen and guess.looped and self._known.has_loop(guess.key)):
            return False
        guess.kind = LeakKind.UNCOLLECTABLE
        return True

    def _guesses(self) -> list[Survivor | None]:
        """Say of each survivor what would hold it if young objects and known causes were all there is."""
        roots, along_ways = self._known.walk()
        with Snapshot([*_storages(self._storages), *along_ways], deep=True, roots=roots) as snapshot:
            del along_ways
            self._young = snapshot.young
            self._note_new(snapshot)
            return list(self._nearby(snapshot))

    def _nearby(self, snapshot: Snapshot) -> Iterator[Survivor | None]:
        reached = _Reached(snapshot, self._exempt)
        along_ways = search(snapshot, snapshot.root_groups())
        loops = Loops(snapshot, along_ways)
        for made in self._storages:
            position = snapshot.position(made.ref())
            if position < 0:
                yield None
            elif not along_ways.reaches(position):
                yield _unreachable(snapshot, *loops.find(position), made)
            elif reached.past_state.reaches(position):
                chain = reached.past_state.path(position)
                # the state of an optimizer is a leak or not by which parameters live, and not all are listed here
                through_optimizer = any(is_optimizer(snapshot.objects[place]) for place in chain)
                yield None if through_optimizer else self._retained(snapshot, chain, made)
            else:
                yield None

    def run(self, *, deep: bool = False) -> Diagnosis | None:
        """Explain the survivors, or return None if only a deep snapshot can tell who holds one."""
        if not self._storages:
            return Diagnosis()
        with Snapshot(_storages(self._storages), self._held, deep=deep, young=self._young) as snapshot:
            return self._explain(snapshot, deep=deep)

    def _explain(self, snapshot: Snapshot, *, deep: bool) -> Diagnosis | None:
        diagnosis = Diagnosis()
        reached = _Reached(snapshot, self._exempt)
        loops: Loops | None = None
        tensors = snapshot.instances(torch.Tensor)
        old = set(snapshot.positions(_storages_behind(t for t in tensors if not snapshot.is_young(t))))
        for made in self._storages:
            position = snapshot.position(made.ref())
            if position < 0 or (not made.certain and position in old):
                continue
            if reached.past_state.reaches(position):
                diagnosis.add(self._retained(snapshot, reached.past_state.path(position), made))
            elif reached.through_state.reaches(position):
                if position not in reached.legitimate:
                    diagnosis.add(self._retained(snapshot, reached.through_state.path(position), made))
            elif not reached.everyone.reaches(position):
                loops = loops or Loops(snapshot, reached.everyone)
                loop, chain = loops.find(position)
                if not loop and not deep:
                    return None
                diagnosis.add(_unreachable(snapshot, loop, chain, made), reachable=False)
        return diagnosis

    def _note_new(self, snapshot: Snapshot) -> None:
        """Note the storages of which every owner is young: no tensor from before the block has them."""
        owners: Counter[int] = Counter()
        with quiet():
            for tensor in filter(snapshot.is_young, snapshot.instances(torch.Tensor)):
                storage = storage_of(tensor)
                if storage is not None:
                    owners[id(storage)] += 1
            for storage in _storages(self._storages):
                count = owners_of(storage)
                if count is not None and count <= owners[id(storage)] + 1:  # its Python object is one
                    self._new.add(id(storage))

    def _older_storages(self) -> set[int]:
        tensors = of_classes(gc.get_objects(2), lambda cls: torch.Tensor in mro_of(cls))
        is_old = ~np.isin(ids_of(tensors), self._young)
        return _storages_behind(compress(tensors, is_old.tolist()))

    def _retained(self, snapshot: Snapshot, chain: list[int], made: NewStorage) -> Survivor | None:
        objects = [snapshot.objects[place] for place in chain]
        if any(map(is_bounded, objects)) if self._per_call else is_torchs_own(objects):
            return None
        steps = steps_of(snapshot, chain)
        cut = entry_step(steps, [not snapshot.is_old(position) for position in chain])
        key = (_identity(snapshot, chain[cut.start]), series_of(cut.edge)) if cut else None
        if cut and all(map(snapshot.is_old, chain[1 : cut.start + 1])):
            self._known.learn_way(objects[: cut.start + 1])
        survivor = Survivor(made, key, _to_tensor(steps), cut, _tensor_words(objects))
        survivor.is_view = _is_view(objects, made.nbytes)
        survivor.registers_itself = cut is not None and registers_itself(
            objects[cut.end], steps[: steps.index(cut)]
        )
        return survivor


class _Reached:
    """What some roots reach; each search goes over the whole heap, so it is made when it is first asked for."""

    def __init__(self, snapshot: Snapshot, exempt: Exemptions) -> None:
        self._snapshot = snapshot
        self._exempt = exempt
        self._own = exempt_edges(snapshot, exempt)
        self._state = state_edges(snapshot) if exempt.state else set()

    @cached_property
    def past_state(self) -> Tree:
        """The program's roots, past what is legitimate.

        A parameter is no leak, but what hangs on it may be one: a graph behind its gradient, its attributes.
        """
        return self._from_program(self._own | self._state)

    @cached_property
    def through_state(self) -> Tree:
        """The program's roots, through the state of models too."""
        return self._from_program(self._own) if self._state else self.past_state

    @cached_property
    def legitimate(self) -> set[int]:
        """The storages of the state of models."""
        return state_storages(self._snapshot, self._state)

    @cached_property
    def everyone(self) -> Tree:
        """All roots, those of the test runner and of what the caller holds included."""
        exempt = self._snapshot.positions(self._exempt.objects)
        return search(self._snapshot, [*self._snapshot.root_groups(runner=True), exempt])

    def _from_program(self, cut: Positions) -> Tree:
        snapshot = self._snapshot
        return search(snapshot, snapshot.root_groups(), closed=snapshot.barriers(), cut=cut)


def _storages(made: Iterable[NewStorage]) -> Iterator[torch.UntypedStorage]:
    return (storage for each in made if (storage := each.ref()) is not None)


def _storages_behind(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Return the ids of the storages of tensors from before the block: they were not made in it."""
    with quiet():
        return {id(storage) for tensor in tensors if (storage := storage_of(tensor)) is not None}


def _identity(snapshot: Snapshot, owner: int) -> object:
    """Return what identifies the owner of a reference; owners that each run makes anew, as threads, share one."""
    obj = snapshot.objects[owner]
    if type(obj) is Root:
        return obj.kind
    return id(obj) if snapshot.is_old(owner) else type_name(type(obj))


def _unreachable(
    snapshot: Snapshot, loop: list[int], chain: list[int], storage: NewStorage
) -> Survivor | None:
    if any(is_import(snapshot.objects[place]) for place in [*loop, *chain]):
        return None
    objects = [snapshot.objects[place] for place in chain]
    cycle = steps_of(snapshot, loop) if loop else []
    cut = edge_to_cut(cycle)
    tail = _to_tensor(steps_of(snapshot, chain))
    return Survivor(
        storage,
        key=series_of(cut.edge) if cut else EdgeKind.C_CODE,
        steps=cycle + tail,
        cut=cut,
        tensor=_tensor_words(objects),
        looped=bool(loop),
        cycle_length=len(cycle or tail),
        branch=_branch(cycle, loop.index(chain[0])) if loop else 0,
    )


def _branch(cycle: list[Step], place: int) -> int:
    """Return the last step of a cycle that begins at or before a place in it."""
    return max((number for number, step in enumerate(cycle) if step.start <= place), default=0)


def _to_tensor(steps: list[Step]) -> list[Step]:
    """Leave out the last reference, from a tensor to its storage."""
    return steps[:-1] if steps and steps[-1].edge.kind is EdgeKind.STORAGE else steps


def _tensor_words(objects: list[Any]) -> str:
    return describe(next((obj for obj in reversed(objects) if is_tensor(obj)), objects[-1]))


def _is_view(objects: list[Any], storage_bytes: int) -> bool:
    """Return True if the tensor at the end of a path shows half of its storage at most."""
    tensor = next((obj for obj in reversed(objects) if is_tensor(obj)), None)
    if tensor is None:
        return False
    with quiet():
        try:
            return bool(2 * TENSOR_DICT["nbytes"].__get__(tensor) <= storage_bytes)
        except (RuntimeError, AttributeError, NotImplementedError):  # nested, sparse and opaque tensors
            return False
