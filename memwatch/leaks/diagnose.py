"""From surviving storages to findings: which kind, and held by which reference."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch.heap.names import describe, type_name
from memwatch.heap.paths import Step, steps_of
from memwatch.heap.pause import collect
from memwatch.heap.roots import Root
from memwatch.heap.search import search
from memwatch.heap.snapshot import Snapshot
from memwatch.heap.tensors import is_tensor, quiet, storage_of
from memwatch.leaks.finding import Finding
from memwatch.leaks.groups import leaks_of
from memwatch.leaks.holders import edge_to_cut, entry_step
from memwatch.leaks.leak import FROM_CYCLE
from memwatch.leaks.legit import own_edges, state_edges, state_storages
from memwatch.leaks.loops import Loops
from memwatch.leaks.tolerated import is_bounded, is_import, is_torchs_own

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.heap.search import Tree
    from memwatch.leaks.births import Birth
    from memwatch.leaks.leak import Leak
    from memwatch.leaks.legit import Edges, Exempt

_NUMBERS: Final = re.compile(r"\d+|'[^']*'")


@dataclass(slots=True)
class Diagnosis:
    """What one look at the heap said.

    Attributes:
        retained: storages that a live root reaches.
        unreachable: storages no root reaches; only a collection tells which kind they are.
    """

    retained: list[Finding] = field(default_factory=list)
    unreachable: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding | None, *, reachable: bool = True) -> None:
        """Take a finding, unless it was tolerated."""
        if finding is not None:
            (self.retained if reachable else self.unreachable).append(finding)


def diagnose(
    births: Sequence[Birth],
    exempt: Exempt,
    *,
    runs: int,
    per_call: bool,
    first_run: int = 1,
    held: Sequence[tuple[str, object]] = (),
) -> list[Leak]:
    """Explain the storages that outlived the runs that made them.

    Args:
        births: the survivors.
        exempt: references that are no leak.
        runs: how many runs were measured; a leak has survivors of each.
        per_call: True to report bytes and counts per run.
        first_run: index of the first measured run.
        held: named objects that live on after the runs: the function and its arguments.

    Returns:
        Leaks, largest first.
    """
    look = _Look(births, exempt, held, per_call=per_call)
    diagnosis = look.take()
    if diagnosis is None:  # something holds a survivor that gc does not show: look closer
        diagnosis = look.take(deep=True)
    assert diagnosis is not None
    if diagnosis.unreachable:
        collect()
        for finding in diagnosis.unreachable:
            finding.kind = "uncollectable" if finding.looped else "retained"
            if not finding.birth.alive:
                finding.kind = "cycle"
        if not per_call:  # held by C++ alone, once: a cache of torch, an open autocast context
            diagnosis.unreachable = [f for f in diagnosis.unreachable if f.kind != "retained"]
    measured = set(range(first_run, first_run + runs))
    return leaks_of(diagnosis.retained + diagnosis.unreachable, measured, per_call=per_call)


class _Look:
    """Looks at the heap for the holders of survivors."""

    def __init__(
        self,
        births: Sequence[Birth],
        exempt: Exempt,
        held: Sequence[tuple[str, object]],
        *,
        per_call: bool,
    ) -> None:
        self._births = births
        self._exempt = exempt
        self._held = held
        self._per_call = per_call

    def take(self, *, deep: bool = False) -> Diagnosis | None:
        """Explain the survivors, or return None if only a deep look can tell who holds one."""
        storages = (storage for birth in self._births if (storage := birth.ref()) is not None)
        with Snapshot(storages, self._held, deep=deep) as snapshot:
            return self._explain(snapshot, deep=deep)

    def _explain(self, snapshot: Snapshot, *, deep: bool) -> Diagnosis | None:
        diagnosis = Diagnosis()
        state = state_edges(snapshot) if self._exempt.state else set()
        ways = self._ways(snapshot, state)
        legitimate = state_storages(snapshot, state)
        exempt = snapshot.positions(self._exempt.objects)
        everyone = search(snapshot, [*snapshot.root_groups(runner=True), exempt])
        loops: Loops | None = None
        old = _old_storages(snapshot)
        for birth in self._births:
            position = snapshot.position(birth.ref())
            if position < 0 or (not birth.certain and position in old):
                continue
            way = next((number for number, tree in enumerate(ways) if tree.reaches(position)), None)
            if way is not None:
                if way == 0 or position not in legitimate:
                    diagnosis.add(self._retained(snapshot, ways[way].path(position), birth))
            elif not everyone.reaches(position):
                loops = loops or Loops(snapshot, everyone)
                loop, chain = loops.find(position)
                if not loop and not deep:
                    return None
                diagnosis.add(_unreachable(snapshot, loop, chain, birth), reachable=False)
        return diagnosis

    def _ways(self, snapshot: Snapshot, state: Edges) -> list[Tree]:
        """Search from the program's roots: past what is legitimate, then through the state of models too.

        A parameter is no leak, but what hangs on it may be one: a graph behind its gradient, its attributes.
        """
        groups, closed = snapshot.root_groups(), snapshot.barriers()
        own = own_edges(snapshot, self._exempt)
        cuts = [own | state, own] if state else [own]
        return [search(snapshot, groups, closed=closed, cut=cut) for cut in cuts]

    def _retained(self, snapshot: Snapshot, chain: list[int], birth: Birth) -> Finding | None:
        objects = [snapshot.objects[place] for place in chain]
        if any(map(is_bounded, objects)) if self._per_call else is_torchs_own(objects):
            return None
        steps = steps_of(snapshot, chain)
        step = entry_step(steps, [not snapshot.is_old(position) for position in chain])
        key = (_identity(snapshot, chain[step.start]), _pattern(step.words)) if step else None
        return Finding(birth, key, _to_tensor(steps), step, _tensor_words(objects))


def _old_storages(snapshot: Snapshot) -> set[int]:
    """Find the storages that an object from before the block is a tensor of: they were not born in it."""
    old = set()
    with quiet():
        for tensor in snapshot.instances(torch.Tensor):
            if id(tensor) not in snapshot.young:
                storage = storage_of(tensor)
                if storage is not None:
                    old.add(id(storage))
    return set(snapshot.positions(old))


def _identity(snapshot: Snapshot, owner: int) -> object:
    """Tell the owners of a reference apart, except where each run has its own: threads, modules made anew."""
    obj = snapshot.objects[owner]
    if type(obj) is Root:
        return obj.kind
    return id(obj) if snapshot.is_old(owner) else type_name(type(obj))


def _unreachable(snapshot: Snapshot, loop: list[int], chain: list[int], birth: Birth) -> Finding | None:
    if any(is_import(snapshot.objects[place_]) for place_ in [*loop, *chain]):
        return None
    objects = [snapshot.objects[place_] for place_ in chain]
    steps = steps_of(snapshot, loop) if loop else []
    looped = any(step.hidden for step in steps) or bool(loop)
    holder = edge_to_cut(steps)
    tail = _to_tensor(steps_of(snapshot, chain))
    key = _pattern(holder.words) if holder else "C code"
    return Finding(
        birth, key, steps + _marked(tail, loop=bool(loop)), holder, _tensor_words(objects), looped=looped
    )


def _marked(tail: list[Step], *, loop: bool) -> list[Step]:
    if not loop or not tail:
        return tail
    first = tail[0]
    words = f"{FROM_CYCLE} {first.words}"
    return [Step(words, first.target, first.hidden, first.file, first.line), *tail[1:]]


def _to_tensor(steps: list[Step]) -> list[Step]:
    """Leave out the last reference, from a tensor to its storage."""
    return steps[:-1] if steps and steps[-1].words.startswith("storage of") else steps


def _tensor_words(objects: list[Any]) -> str:
    return describe(next((obj for obj in reversed(objects) if is_tensor(obj)), objects[-1]))


def _pattern(words: str) -> str:
    """Blank out indices, keys and sizes: entries 17 and 18 of one list are one leak."""
    return _NUMBERS.sub("*", words)
