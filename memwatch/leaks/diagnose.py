"""From surviving storages to leaks: which kind, held by which reference, grouped by the line to edit."""

from __future__ import annotations

import re
import time
from collections import deque
from dataclasses import dataclass, field
from functools import _lru_cache_wrapper
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch.heap.names import describe, place
from memwatch.heap.paths import Step, steps_of
from memwatch.heap.pause import collect
from memwatch.heap.roots import Root
from memwatch.heap.search import search
from memwatch.heap.snapshot import Snapshot
from memwatch.heap.tensors import is_tensor, mro_of, quiet, storage_of
from memwatch.leaks.advice import advice_for
from memwatch.leaks.holders import edge_to_cut, entry_step, holder_words
from memwatch.leaks.leak import Leak
from memwatch.leaks.legit import Exempt, exempt_edges
from memwatch.leaks.loops import Loops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.leaks.births import Birth

_SMALL_BOUND: Final = 64
_NUMBERS: Final = re.compile(r"\d+|'[^']*'")


@dataclass(slots=True)
class Finding:
    """One surviving storage with the words that explain it; holds text and weak references only."""

    birth: Birth
    key: object
    steps: list[Step]
    holder: Step | None
    tensor: str
    kind: str = "retained"
    looped: bool = False


@dataclass(slots=True)
class Diagnosis:
    """What one look at the heap said.

    Attributes:
        retained: storages that a live root reaches.
        unreachable: storages no root reaches; only a collection tells which kind they are.
    """

    retained: list[Finding] = field(default_factory=list)
    unreachable: list[Finding] = field(default_factory=list)


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
    diagnosis = _look(births, exempt, held)
    if diagnosis.unreachable:
        collect()
        for finding in diagnosis.unreachable:
            finding.kind = "uncollectable" if finding.looped else "retained"
            if not finding.birth.alive:
                finding.kind = "cycle"
        if not per_call:  # held by C++ alone, once: a cache of torch, an open autocast context
            diagnosis.unreachable = [f for f in diagnosis.unreachable if f.kind != "retained"]
    groups: dict[object, list[Finding]] = {}
    for finding in diagnosis.retained + diagnosis.unreachable:
        groups.setdefault((finding.kind, finding.key), []).append(finding)
    measured = set(range(first_run, first_run + runs))
    leaks = [
        _leak(group, runs if per_call else 1, per_call=per_call)
        for group in groups.values()
        if not per_call or measured <= {finding.birth.run for finding in group}
    ]
    return sorted(leaks, key=lambda leak: -leak.nbytes)


def _look(births: Sequence[Birth], exempt: Exempt, held: Sequence[tuple[str, object]]) -> Diagnosis:
    diagnosis = Diagnosis()
    with Snapshot([storage for birth in births if (storage := birth.ref()) is not None], held) as snapshot:
        closed = snapshot.barriers()
        program = search(snapshot, snapshot.root_groups(), closed=closed, cut=exempt_edges(snapshot, exempt))
        everyone = search(snapshot, [*snapshot.root_groups(runner=True), snapshot.positions(exempt.objects)])
        loops: Loops | None = None
        old = _old_storages(snapshot)
        for birth in births:
            position = snapshot.position(birth.ref())
            if position < 0 or (not birth.certain and position in old):
                continue
            if program.reaches(position):
                finding = _retained(snapshot, program.path(position), birth)
                if finding is not None:
                    diagnosis.retained.append(finding)
            elif not everyone.reaches(position):
                loops = loops or Loops(snapshot, everyone)
                finding = _unreachable(snapshot, loops, position, birth)
                if finding is not None:
                    diagnosis.unreachable.append(finding)
    return diagnosis


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


def _retained(snapshot: Snapshot, chain: list[int], birth: Birth) -> Finding | None:
    objects = [snapshot.objects[place_] for place_ in chain]
    if any(_is_small_cache(obj) for obj in objects):
        return None
    steps = steps_of(snapshot, chain)
    step = entry_step(steps, [not snapshot.is_old(position) for position in chain])
    key = (_identity(objects[step.start]), _pattern(step.words)) if step else None
    return Finding(birth, key, _to_tensor(steps), step, _tensor_words(objects))


def _identity(owner: Any) -> object:
    # the calls of many threads are different frames but one line to edit
    return owner.kind if type(owner) is Root else id(owner)


def _is_small_cache(obj: Any) -> bool:
    cls = type(obj)
    if cls is _lru_cache_wrapper:
        size = obj.cache_parameters()["maxsize"]
        return size is not None and (size <= _SMALL_BOUND or obj.cache_info().currsize >= size)
    if deque in mro_of(cls):
        limit = deque.maxlen.__get__(obj)
        return limit is not None and (limit <= _SMALL_BOUND or deque.__len__(obj) >= limit)
    return False


def _unreachable(snapshot: Snapshot, loops: Loops, position: int, birth: Birth) -> Finding | None:
    loop, chain = loops.find(position)
    if any(_is_import(snapshot.objects[place_]) for place_ in [*loop, *chain]):
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


def _is_import(obj: object) -> bool:
    # A module that keeps a frame while it is being imported ties up, once, the frames of whoever imported it: torch
    # does so when the first optimizer step or checkpoint of a process loads torch._dynamo.
    return type(obj) is FrameType and obj.f_code.co_filename.startswith("<frozen importlib")


def _marked(tail: list[Step], *, loop: bool) -> list[Step]:
    if not loop or not tail:
        return tail
    first = tail[0]
    words = f"(and from the cycle) {first.words}"
    return [Step(words, first.target, first.hidden, first.file, first.line), *tail[1:]]


def _to_tensor(steps: list[Step]) -> list[Step]:
    """Leave out the last reference, from a tensor to its storage."""
    return steps[:-1] if steps and steps[-1].words.startswith("storage of") else steps


def _tensor_words(objects: list[Any]) -> str:
    return describe(next((obj for obj in reversed(objects) if is_tensor(obj)), objects[-1]))


def _pattern(words: str) -> str:
    """Blank out indices, keys and sizes: entries 17 and 18 of one list are one leak."""
    return _NUMBERS.sub("*", words)


def _leak(group: list[Finding], runs: int, *, per_call: bool) -> Leak:
    first = max(
        group, key=lambda finding: (finding.birth.site is not None, finding.birth.nbytes, -len(finding.steps))
    )
    shown = min(group, key=lambda finding: (len(finding.steps), -finding.birth.nbytes))
    path = tuple(str(step) for step in shown.steps) or ("no Python reference: held by C code alone",)
    holder = holder_words(shown.steps, shown.holder, first.kind)
    return Leak(
        kind=first.kind,  # type: ignore[arg-type]
        nbytes=sum(finding.birth.nbytes for finding in group) // runs,
        count=max(1, len(group) // runs),
        holder=holder,
        path=path,
        site=_site(group),
        advice=advice_for(holder, path, graph=_keeps_graph(group)),
        tensor=first.tensor,
        held_s=time.monotonic() - min(finding.birth.time_s for finding in group),
        per_call=per_call,
        reference=shown.holder.words if shown.holder else holder,
        keeps_graph=_keeps_graph(group),
    )


def _keeps_graph(group: list[Finding]) -> bool:
    return any(".grad_fn of" in step.words for finding in group for step in finding.steps)


def _site(group: list[Finding]) -> str | None:
    """Return the line that made what is held first: the tensor itself, rather than its activations."""
    known = [finding for finding in group if finding.birth.site is not None]
    if not known:
        return None
    file, line, function = min(known, key=lambda finding: len(finding.steps)).birth.site  # type: ignore[misc]
    return f"{place(file, line)} in {function}"
