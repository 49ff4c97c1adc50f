"""Examine rows that grow: find the types and the holders of their objects, or the names of their mappings."""

from __future__ import annotations

import gc
import re
import sys
from collections import Counter
from dataclasses import replace
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, Final

from memwatch.monitor import malloc_sampler
from memwatch.monitor.device_memory import CACHE, ELSEWHERE, OUTSIDE
from memwatch.sizes import format_bytes
from memwatch.words.processes import (
    ARROW_BUFFERS,
    DEVICE_CACHE,
    DEVICE_ELSEWHERE,
    DEVICE_OUTSIDE,
    GROWN_CONTAINERS,
    HELD_OBJECTS,
    NEW_ENTRIES,
    OTHER_MAPPINGS,
    grown_type_text,
    large_objects_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import CodeType

    from memwatch.heap.search import Tree
    from memwatch.heap.snapshot import Snapshot
    from memwatch.monitor.objects import PythonMemory
    from memwatch.monitor.rows import Child

_SAMPLED: Final = 16  # tensors whose holders are searched; a guess
_SAMPLED_OBJECTS: Final = 64
"""Python objects whose holders are searched. One search finds all holders, and 64 more names take about 10 ms."""
_MOST_OBJECTS: Final = 2_000_000
"""A search of more objects would stop the program for longer than about 3 s."""
_NAMED: Final = 3
"""Holders, lines and processes that a sentence names, the largest ones. A guess."""


def tensors(at_start: frozenset[int], device: str) -> str:
    """Return the holder of most new tensors of a device, as a sentence.

    Args:
        at_start: ids of the tensors that existed at the start.
        device: the device, such as `cpu` or `cuda:0`.
    """
    from memwatch.heap.classes import of_classes
    from memwatch.heap.tensors import TypeFilter, is_on, is_tensor, quiet

    if refusal := _refusal():
        return refusal
    with quiet():
        new = [
            obj
            for obj in of_classes(gc.get_objects(), TypeFilter().wants)
            if id(obj) not in at_start and is_tensor(obj) and is_on(obj, device)
        ]
    sampled = new[:: max(len(new) // _SAMPLED, 1)][:_SAMPLED]
    new.clear()
    return _held_by(sampled, "of its new tensors that were looked at")


def python_objects(at_start: PythonMemory) -> str:
    """Return the types that have more bytes, and the holders of the new objects, as a sentence.

    Args:
        at_start: the Python objects when the monitor began.
    """
    from memwatch.monitor.objects import is_container, python_memory

    if refusal := _refusal():
        return refusal
    large: list[tuple[int, Any]] = []

    def keep_large(obj: Any, nbytes: int) -> None:
        # an old object counts with its growth, because a buffer may have grown in place
        more_bytes = nbytes - at_start.large.get(id(obj), 0)
        if more_bytes > 0 and not is_container(type(obj)):
            large.append((more_bytes, obj))

    before = at_start.by_type
    grown = {
        name: (count - before.get(name, (0, 0))[0], nbytes - before.get(name, (0, 0))[1])
        for name, (count, nbytes) in python_memory(keep_large=keep_large).by_type.items()
    }
    largest = sorted(grown, key=lambda name: -grown[name][1])[:_NAMED]
    found = [grown_type_text(name, *grown[name]) for name in largest if grown[name][1] > 0]
    # A few large objects may be in a container with too few entries. Such a container cannot be found by its length.
    least_bytes = _LARGE_RATIO * max(nbytes for _, nbytes in grown.values())
    if text := _large_objects(large, least_bytes):
        return "; ".join([*found, text])
    holders = _containers(at_start, _LEAST_SHARE_OF_GROWTH * _bytes_more(grown))
    return "; ".join([*found, *(holders or _small_objects(grown))])


def _large_objects(large: list[tuple[int, Any]], least_bytes: float) -> str:
    """Return the holder of most bytes of new large objects, as a sentence; "" if they have too few bytes.

    Args:
        large: the objects, each after its new bytes. The list is emptied.
        least_bytes: the bytes that objects with a holder must have.
    """
    number, large_bytes = len(large), sum(nbytes for nbytes, _ in large)
    large.sort(key=lambda each: -each[0])
    del large[_SAMPLED_OBJECTS if large_bytes >= least_bytes else 0 :]
    sizes = [nbytes for nbytes, _ in large]
    holders = _holders_of([obj for _, obj in large])
    large.clear()
    number_held: Counter[str] = Counter()
    held_bytes: Counter[str] = Counter()
    for holder, nbytes in zip(holders, sizes, strict=True):
        if holder != NO_HOLDER:
            number_held[holder] += 1
            held_bytes[holder] += nbytes
    if not held_bytes or large_bytes * sum(held_bytes.values()) / sum(sizes) < least_bytes:
        return ""
    holder, nbytes = held_bytes.most_common(1)[0]
    return large_objects_text(nbytes, number_held[holder], len(sizes), number, holder)


def _small_objects(grown: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return the holder of most new objects of a type that grew, as a sentence, if any.

    This finds trees and linked lists, where no single container has many entries. A sample has old and new objects,
    because the ids of old objects are not known. So a holder must have so many of the sampled objects that they include
    at least half of the new ones.

    Args:
        grown: by type, how many objects and bytes more there are than at the start.
    """
    from memwatch.monitor.objects import class_name

    largest = sorted(grown, key=lambda name: -grown[name][1])[:_NAMED]
    names: dict[int, str] = {}
    of_type: dict[str, list[Any]] = {name: [] for name in largest}
    for obj in gc.get_objects():
        key = id(type(obj))
        if key not in names:
            names[key] = class_name(type(obj))
        if names[key] in of_type:
            of_type[names[key]].append(obj)
    found = []
    for name in largest:
        objects = of_type[name]
        new, number = grown[name][0], len(objects)
        sampled = objects[:: max(number // _SAMPLED_OBJECTS, 1)][:_SAMPLED_OBJECTS]
        objects.clear()
        # the new objects may be of a kind that gc does not list: texts, numbers, arrays, and tuples of these
        if not number or new > number:
            continue
        if 2 * new < number or grown[name][1] < _LEAST_SHARE_OF_GROWTH * _bytes_more(grown):
            continue  # too many of the sampled objects would be old
        holders = Counter(_holders_of(sampled))
        of_sample = len(sampled)
        sampled.clear()
        holder, held = holders.most_common(1)[0]
        if holder != NO_HOLDER and held / of_sample >= 1 - new / number / 2:
            found.append(HELD_OBJECTS.format(held=held, sampled=of_sample, kind=name, holder=holder))
            break
    return found


def _bytes_more(grown: Mapping[str, tuple[int, int]]) -> int:
    return sum(nbytes for _, nbytes in grown.values() if nbytes > 0)


def _containers(at_start: PythonMemory, least_bytes: float) -> list[str]:
    """Return the container that got most bytes, or the holder of many containers that grew, as a sentence, if any."""
    from memwatch.monitor.objects import class_name, grown_containers

    found = grown_containers(at_start.lengths, _SAMPLED)
    containers = [container for container, _, _ in found]
    sizes = [(class_name(type(container)), added, nbytes) for container, added, nbytes in found]
    found.clear()
    holders = _holders_of(containers)
    containers.clear()
    by_holder: dict[str, tuple[int, int]] = {}
    for holder, (kind, added, nbytes) in zip(holders, sizes, strict=True):
        if holder == NO_HOLDER:  # memwatch's own
            continue
        if nbytes >= least_bytes:
            text = NEW_ENTRIES.format(added=added, size=format_bytes(nbytes), kind=kind, holder=holder)
            return [text]
        number, total = by_holder.get(holder, (0, 0))
        by_holder[holder] = number + 1, total + nbytes
    holder, (number, total) = max(by_holder.items(), key=lambda each: each[1][1], default=(NO_HOLDER, (0, 0)))
    if total < max(least_bytes, 1):
        return []
    return [GROWN_CONTAINERS.format(count=number, size=format_bytes(total), holder=holder)]


_LARGE_RATIO: Final = 0.5
"""If the new large objects have at least this share of the growth of the type that grew most, they are examined instead
of containers. A guess."""


_LEAST_SHARE_OF_GROWTH: Final = 0.1
"""A container with a smaller share of the growth is not named. In programs with logs, lists, caches and log records,
the estimate for the right container was 0.65 to 1.7 of the growth, and that of another container at most 0.05."""


def _refusal() -> str:
    number = len(gc.get_objects())
    if number <= _MOST_OBJECTS:
        return ""
    return f"the holders were not searched, because a search of {number:,} objects would stop the program for long"


def paths(before: Mapping[str, int], now: Mapping[str, int], row: str) -> str:
    """Return the files whose mappings grew, as a sentence."""
    from memwatch.monitor.rows import ARROW, NATIVE, OTHER

    prefix = f"{row}: "
    grown = {
        name.removeprefix(prefix): nbytes - before.get(name, 0)
        for name, nbytes in now.items()
        if name.startswith(prefix) and nbytes > before.get(name, 0)
    }
    largest = sorted(grown, key=lambda name: -grown[name])[:_NAMED]
    named = ", ".join(f"{name or 'without a name'} ({format_bytes(grown[name])} more)" for name in largest)
    if row in (ARROW, OTHER):
        return ARROW_BUFFERS if row == ARROW else OTHER_MAPPINGS
    if row != NATIVE:
        return named
    blocks = "blocks of malloc that belong to no tensor and no Python object that memwatch finds"
    if named:
        return f"{blocks}; allocated by {named}"
    unnamed = "a native library, or objects that gc does not show"
    return f"{blocks}: {unnamed}" if malloc_sampler.is_on() else f"{blocks}: {unnamed} ({_HOW_TO_NAME})"


_HOW_TO_NAME: Final = "MEMWATCH=monitor,native=1 names the library"


def device_row(row: str) -> str:
    """Return a sentence about a row of a device other than its tensors."""
    return _OF_DEVICE_ROW[row]


_OF_DEVICE_ROW: Final = {CACHE: DEVICE_CACHE, ELSEWHERE: DEVICE_ELSEWHERE, OUTSIDE: DEVICE_OUTSIDE}


def children(processes: Sequence[Child]) -> str:
    """Return the largest processes that this one started, as a sentence."""
    largest = sorted(processes, key=lambda process: -process.uss_bytes)[:_NAMED]
    return ", ".join(f"{each.name} {each.pid} has {format_bytes(each.uss_bytes)}" for each in largest)


def _held_by(targets: list[Any], of_which: str) -> str:
    """Return the holder of most of some objects, by the shortest paths from the program's roots."""
    number = len(targets)
    found = [holder for holder in _holders_of(targets) if holder != NO_HOLDER]
    targets.clear()
    holder, count = Counter(found).most_common(1)[0] if found else (NO_HOLDER, 0)
    return f"{count} {of_which} ({number}) are held by {holder}" if of_which else holder


NOT_SEARCHED: Final = "a holder that was not searched, because the program has not imported torch"
NO_HOLDER: Final = "no reference that gc sees"
MOST_STEPS: Final = 64
"""References from a root that are named. A path along a linked list has thousands, and three are shown. A guess."""


def can_search() -> bool:
    """Return whether holders can be searched. The search imports torch, which not every program wants."""
    return "torch" in sys.modules


def _holders_of(targets: list[Any]) -> list[str]:
    """Return the holder of each of some objects, in one search."""
    if not targets:
        return []
    if not can_search():
        return [NOT_SEARCHED] * len(targets)
    from memwatch.heap.paths import steps_of
    from memwatch.heap.snapshot import Snapshot

    holders: list[str] = []
    with Snapshot(targets, deep=True) as snapshot:
        tree = paths_from_roots(snapshot)
        for target in targets:
            position = snapshot.position(target)
            if tree.reaches(position):
                steps = [
                    step for step in steps_of(snapshot, tree.path(position)[:MOST_STEPS]) if not step.hidden
                ]
                holders.append(words_of(steps))
            else:
                holders.append(NO_HOLDER)
    return holders


def paths_from_roots(snapshot: Snapshot) -> Tree:
    """Search from the roots of the program, and then from its suspended generators and coroutines.

    A `for` loop holds its generator on the stack of the running call, where gc does not search. So for gc, nothing
    refers to the generator and to the objects in its variables.
    """
    from memwatch.heap.frames import is_own_code
    from memwatch.heap.search import search

    suspended = [
        snapshot.position(call)
        for call in snapshot.of_types(lambda cls: any(cls is each for each in _SUSPENDED))
        if not is_own_code(_SUSPENDED[type(call)](call))
    ]
    return search(snapshot, [*snapshot.root_groups(runner=True), suspended], closed=snapshot.barriers())


_SUSPENDED: Final[dict[type, Callable[[Any], CodeType]]] = {
    GeneratorType: lambda call: call.gi_code,
    CoroutineType: lambda call: call.cr_code,
    AsyncGeneratorType: lambda call: call.ag_code,
}


def words_of(steps: list[Any]) -> str:
    """Return the path to an object in words, without the parts that differ from object to object.

    These parts are the positions in containers and the numbers of threads.
    """
    from memwatch.kinds.edges import EdgeKind
    from memwatch.words.edges import edge_phrase

    # the words for the base of an array have the array's shape, which differs too
    edges = [
        step.edge
        for step in steps
        if not step.edge.kind.row.is_entry and step.edge.kind is not EdgeKind.NUMPY_BASE
    ][:_NAMED]
    named = [
        edge_phrase(replace(edge, owner=replace(edge.owner, thread=_NUMBER.sub("*", edge.owner.thread))))
        if edge.owner is not None
        else edge_phrase(edge)
        for edge in edges
    ]
    return ", ".join(dict.fromkeys(named)) or "a container without a name"


_NUMBER: Final = re.compile(r"(?<=[-_])\d+")
"""The number in the name of a thread, such as `Thread-7 (work)` or `ThreadPoolExecutor-0_3`."""
