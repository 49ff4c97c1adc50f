"""Examine what grows: the types and the holders of objects, the names of mappings."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from memwatch.monitor import malloc_sampler
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memwatch.monitor.objects import PythonMemory
    from memwatch.monitor.rows import Child

_SAMPLED: Final = 16  # tensors whose holders are searched
_MOST_OBJECTS: Final = 2_000_000
"""A search of more objects would stop the program for longer than about 3 s."""
_NAMED: Final = 3


def tensors(at_start: frozenset[int]) -> str:
    """Return who holds the tensors that were not there at the start, as a sentence.

    Args:
        at_start: ids of the tensors that were.
    """
    from memwatch.heap.classes import of_classes
    from memwatch.heap.tensors import TypeFilter, is_on_cpu, is_tensor, quiet

    if refusal := _refusal():
        return refusal
    with quiet():
        new = [
            obj
            for obj in of_classes(gc.get_objects(), TypeFilter().wants)
            if id(obj) not in at_start and is_tensor(obj) and is_on_cpu(obj)
        ]
    sampled = new[:: max(len(new) // _SAMPLED, 1)][:_SAMPLED]
    new.clear()
    return _held_by(sampled, "of its new tensors that were looked at")


def python_objects(at_start: PythonMemory) -> str:
    """Return the types that have more bytes and who holds the new objects, as a sentence.

    Args:
        at_start: the Python objects when the monitor began.
    """
    from memwatch.monitor.objects import class_name, grown_containers, is_container, python_memory

    if refusal := _refusal():
        return refusal
    large: list[tuple[int, Any]] = []

    def keep_large(obj: Any, nbytes: int) -> None:
        if id(obj) not in at_start.large and not is_container(type(obj)):
            large.append((nbytes, obj))

    before = at_start.by_type
    grown = {
        name: (count - before.get(name, (0, 0))[0], nbytes - before.get(name, (0, 0))[1])
        for name, (count, nbytes) in python_memory(keep_large=keep_large).by_type.items()
    }
    largest = sorted(grown, key=lambda name: -grown[name][1])[:_NAMED]
    found = [
        f"{grown[name][0]:+,} `{name}` ({format_bytes(grown[name][1])})"
        for name in largest
        if grown[name][1] > 0
    ]
    # Few large objects may lie in a container that has too few entries to be found by its length.
    large_bytes = sum(nbytes for nbytes, _ in large)
    least_bytes = _LARGE_RATIO * max(nbytes for _, nbytes in grown.values())
    large.sort(key=lambda each: -each[0])
    sampled = [obj for _, obj in large[:_SAMPLED]] if large_bytes >= least_bytes else []
    large.clear()
    holders = [holder for holder in _holders_of(sampled) if holder != _NO_HOLDER]
    held_bytes = large_bytes * len(holders) // max(len(sampled), 1)  # memwatch's own arrays have no holder
    if holders and held_bytes >= least_bytes:
        holder, count = Counter(holders).most_common(1)[0]
        found.append(f"{count} of its largest new objects ({len(sampled)}) are held by {holder}")
        return "; ".join(found)
    sampled.clear()
    for container, added, nbytes in grown_containers(at_start.lengths, 1):
        kind = class_name(type(container))
        path = _held_by([container], "")
        found.append(f"{added:,} new entries (about {format_bytes(nbytes)}) in the `{kind}` held by {path}")
        del container
    return "; ".join(found)


_LARGE_RATIO: Final = 0.5
"""The share of the type that grew most from which new large objects are examined, and not containers. A guess."""


def _refusal() -> str:
    number = len(gc.get_objects())
    if number <= _MOST_OBJECTS:
        return ""
    return f"the holders were not searched, because a search of {number:,} objects would stop the program for long"


def paths(before: Mapping[str, int], now: Mapping[str, int], row: str) -> str:
    """Return the files whose mappings grew, as a sentence."""
    from memwatch.monitor.rows import NATIVE

    prefix = f"{row}: "
    grown = {
        name.removeprefix(prefix): nbytes - before.get(name, 0)
        for name, nbytes in now.items()
        if name.startswith(prefix) and nbytes > before.get(name, 0)
    }
    largest = sorted(grown, key=lambda name: -grown[name])[:_NAMED]
    named = ", ".join(f"{name or 'without a name'} ({format_bytes(grown[name])} more)" for name in largest)
    if row != NATIVE:
        return named
    blocks = "blocks of malloc that belong to no tensor and no Python object that memwatch finds"
    if named:
        return f"{blocks}; allocated by {named}"
    unnamed = "a native library, or objects that gc does not show"
    return f"{blocks}: {unnamed}" if malloc_sampler.is_on() else f"{blocks}: {unnamed} ({_HOW_TO_NAME})"


_HOW_TO_NAME: Final = "MEMWATCH=monitor,native=1 names the library"


def children(processes: Sequence[Child]) -> str:
    """Return the largest processes that this one started, as a sentence."""
    largest = sorted(processes, key=lambda process: -process.uss_bytes)[:_NAMED]
    return ", ".join(f"{each.name} {each.pid} has {format_bytes(each.uss_bytes)}" for each in largest)


def copies_in_forks(pids: Iterable[int]) -> list[str]:
    """Return sentences about the lists whose objects forks of this process have copied.

    Args:
        pids: the processes that this one started.
    """
    from memwatch.monitor.forks import copied_lists, forks_of

    found = copied_lists(forks_of(pids))
    holders = _holders_of([each.container for each in found])
    return [each.text(holder) for each, holder in zip(found, holders, strict=True)]


def _held_by(targets: list[Any], of_which: str) -> str:
    """Return who holds most of some objects, by the shortest paths from the program's roots."""
    number = len(targets)
    found = [holder for holder in _holders_of(targets) if holder != _NO_HOLDER]
    targets.clear()
    holder, count = Counter(found).most_common(1)[0] if found else (_NO_HOLDER, 0)
    return f"{count} {of_which} ({number}) are held by {holder}" if of_which else holder


_NOT_SEARCHED: Final = "a holder that was not searched, because the program has not imported torch"
_NO_HOLDER: Final = "no reference that gc sees"


def _holders_of(targets: list[Any]) -> list[str]:
    """Return the holder of each of some objects, in one search."""
    if not targets:
        return []
    if "torch" not in sys.modules:  # the search imports it, and the program may not want it
        return [_NOT_SEARCHED] * len(targets)
    from memwatch.heap.paths import steps_of
    from memwatch.heap.search import search
    from memwatch.heap.snapshot import Snapshot

    holders: list[str] = []
    with Snapshot(targets, deep=True) as snapshot:
        tree = search(snapshot, snapshot.root_groups(runner=True), closed=snapshot.barriers())
        for target in targets:
            position = snapshot.position(target)
            if tree.reaches(position):
                steps = [step for step in steps_of(snapshot, tree.path(position)) if not step.hidden]
                holders.append(_words_of(steps))
            else:
                holders.append(_NO_HOLDER)
    return holders


def _words_of(steps: list[Any]) -> str:
    """Return the path to an object without the places in containers, which differ from object to object."""
    from memwatch.kinds.edges import EdgeKind

    places = {EdgeKind.VALUE, EdgeKind.ITEM, EdgeKind.KEY, EdgeKind.MEMBER}
    named = [step.words for step in steps if step.edge.kind not in places]
    return ", ".join(dict.fromkeys(named[:_NAMED])) or "a container without a name"
