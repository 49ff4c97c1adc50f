"""Examine what grows: the types and the holders of objects, the names of mappings, and copies in forked processes.

A fork shares all pages with its parent until one of them writes. Python writes a reference count into each object that
it reads. So the workers of a DataLoader copy the objects of a list in the dataset, one page after the other, although
they only read them. An array or a tensor has one reference count for all its data, and its data stay shared.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import re
import sys
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.host_allocators import PAGE_BYTES
from memwatch.monitor import malloc_sampler
from memwatch.monitor.mappings import pages_of
from memwatch.signal_handlers import pass_on
from memwatch.sizes import format_bytes
from memwatch.words.processes import (
    ARROW_BUFFERS,
    GROWN_CONTAINERS,
    HELD_OBJECTS,
    NEW_ENTRIES,
    OTHER_MAPPINGS,
    grown_type_text,
    large_objects_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from memwatch.monitor.objects import PythonMemory
    from memwatch.monitor.rows import Child

_SAMPLED: Final = 16  # tensors whose holders are searched
_SAMPLED_OBJECTS: Final = 64
"""Python objects whose holders are searched. One search finds them all, and 64 more names take about 10 ms."""
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
    from memwatch.monitor.objects import is_container, python_memory

    if refusal := _refusal():
        return refusal
    large: list[tuple[int, Any]] = []

    def keep_large(obj: Any, nbytes: int) -> None:
        # a buffer may have grown in its place
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
    # Few large objects may lie in a container that has too few entries to be found by its length.
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
        if holder != _NO_HOLDER:
            number_held[holder] += 1
            held_bytes[holder] += nbytes
    if not held_bytes or large_bytes * sum(held_bytes.values()) / sum(sizes) < least_bytes:
        return ""
    holder, nbytes = held_bytes.most_common(1)[0]
    return large_objects_text(nbytes, number_held[holder], len(sizes), number, holder)


def _small_objects(grown: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return the holder of most new objects of a type that grew, as a sentence, if any.

    This finds trees and linked lists: no single container has many entries. Old objects are not known by their ids.
    So a holder must have so many of the sampled objects that at least half of the new ones are among them.

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
        # gc lists no texts, numbers or arrays, and no dictionaries or tuples of these: the new objects may be such
        if not number or new > number:
            continue
        if 2 * new < number or grown[name][1] < _LEAST_SHARE_OF_GROWTH * _bytes_more(grown):
            continue  # too many of the sampled ones would be old
        holders = Counter(_holders_of(sampled))
        of_sample = len(sampled)
        sampled.clear()
        holder, held = holders.most_common(1)[0]
        if holder != _NO_HOLDER and held / of_sample >= 1 - new / number / 2:
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
        if holder == _NO_HOLDER:  # memwatch's own
            continue
        if nbytes >= least_bytes:
            text = NEW_ENTRIES.format(added=added, size=format_bytes(nbytes), kind=kind, holder=holder)
            return [text]
        number, total = by_holder.get(holder, (0, 0))
        by_holder[holder] = number + 1, total + nbytes
    holder, (number, total) = max(
        by_holder.items(), key=lambda each: each[1][1], default=(_NO_HOLDER, (0, 0))
    )
    if total < max(least_bytes, 1):
        return []
    return [GROWN_CONTAINERS.format(count=number, size=format_bytes(total), holder=holder)]


_LARGE_RATIO: Final = 0.5
"""The share of the type that grew most from which new large objects are examined, and not containers. A guess."""


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


def children(processes: Sequence[Child]) -> str:
    """Return the largest processes that this one started, as a sentence."""
    largest = sorted(processes, key=lambda process: -process.uss_bytes)[:_NAMED]
    return ", ".join(f"{each.name} {each.pid} has {format_bytes(each.uss_bytes)}" for each in largest)


def copies_in_forks(pids: Iterable[int]) -> list[str]:
    """Return sentences about the lists whose objects forks of this process have copied.

    Args:
        pids: the processes that this one started.
    """
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
_MOST_STEPS: Final = 64
"""References from a root whose names are looked for: a path along a linked list has thousands, and three are shown.
A guess."""


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
                steps = [
                    step for step in steps_of(snapshot, tree.path(position)[:_MOST_STEPS]) if not step.hidden
                ]
                holders.append(_words_of(steps))
            else:
                holders.append(_NO_HOLDER)
    return holders


def _words_of(steps: list[Any]) -> str:
    """Return the path to an object without what differs from object to object.

    These are the places in containers, and the numbers of threads.
    """
    from memwatch.kinds.edges import EdgeKind
    from memwatch.words.edges import edge_phrase

    # the words for the base of an array have the array's shape, which differs too
    places = {EdgeKind.VALUE, EdgeKind.ITEM, EdgeKind.KEY, EdgeKind.MEMBER, EdgeKind.NUMPY_BASE}
    edges = [step.edge for step in steps if step.edge.kind not in places][:_NAMED]
    named = [
        edge_phrase(replace(edge, owner=replace(edge.owner, thread=_NUMBER.sub("*", edge.owner.thread))))
        if edge.owner is not None
        else edge_phrase(edge)
        for edge in edges
    ]
    return ", ".join(dict.fromkeys(named)) or "a container without a name"


_NUMBER: Final = re.compile(r"(?<=[-_])\d+")
"""The number in the name of a thread, such as `Thread-7 (work)` or `ThreadPoolExecutor-0_3`."""
_LEAST_ENTRIES: Final = 10_000  # a guess: objects of up to 512 bytes of a shorter list have less than 5 MiB
_RUNS: Final = 64
_ENTRIES_PER_RUN: Final = 4096
"""Of a longer list memwatch looks at 64 stretches of 4,096 entries: 260,000 in about 10 ms."""
LEAST_COPIED_BYTES: Final = 16 << 20
"""Copies of fewer bytes in all processes together are not worth a change of the program. A guess."""
_MOST_LISTS: Final = 8  # a guess
_FEWEST_FORKS: Final = 2
"""With one fork, memwatch cannot tell who copied a page: the fork, or this process, whose objects memwatch itself has
read. With two forks, a page that this process copied is still shared by the forks."""
_POINTER_BYTES: Final = 8
_ITEMS_OF_LIST: Final = 24  # where CPython keeps the address of a list's items, and the items of a tuple
_HAS_KNOWN_LAYOUT: Final = (list.__basicsize__, tuple.__basicsize__) == (40, 24)


@dataclass(frozen=True)
class CopiedList:
    """A list or a tuple whose objects forked processes have copied.

    Attributes:
        container: the list.
        object_bytes: the pages that have its objects, once.
        copied_bytes: the pages of these that forks have of their own, in all forks together.
        forks: how many forks have some.
    """

    container: Any
    object_bytes: int
    copied_bytes: int
    forks: int

    def text(self, holder: str) -> str:
        """Return what happens and what to do, in sentences.

        Args:
            holder: the variable that holds the list.
        """
        name = type(self.container).__name__
        return (
            f"{self.forks} forked processes have {format_bytes(self.copied_bytes)} of copies of the objects in the "
            f"`{name}` held by {holder} ({len(self.container):,} entries in {format_bytes(self.object_bytes)}). "
            "Python writes a reference count into each object that it reads, and the write copies the page. "
            "Keep the entries in one numpy array or tensor (texts: the encoded bytes and their offsets): forks share it"
        )


def forks_of(pids: Iterable[int]) -> list[int]:
    """Return the processes that are forks of this one and have started no other program since."""
    mine = _start_of_program(os.getpid())
    return [pid for pid in pids if mine is not None and _start_of_program(pid) == mine]


def _start_of_program(pid: int) -> list[bytes] | None:
    """Return the random addresses of a process's code and stack, which its forks have too; None if unknown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError as error:
        pass_on(error)
        return None
    found = fields[_START_OF_CODE : _START_OF_CODE + 3]
    # the kernel writes 0 or 1 if this process may not know them
    return found if all(int(address) > PAGE_BYTES for address in found) else None


_START_OF_CODE: Final = 23
"""The place of `startcode` after the name of the program; `endcode` and `startstack` follow (proc_pid_stat(5))."""


def copied_lists(forks: list[int]) -> list[CopiedList]:
    """Return the lists whose objects forks of this process have copied, most bytes first.

    Args:
        forks: the forks, as :func:`forks_of` returns them.
    """
    if len(forks) < _FEWEST_FORKS or not _HAS_KNOWN_LAYOUT:
        return []
    # compared by identity, because `in` would ask the `__eq__` of a metaclass
    lists = (obj for obj in gc.get_objects() if type(obj) is list or type(obj) is tuple)
    longest = sorted((each for each in lists if len(each) >= _LEAST_ENTRIES), key=len, reverse=True)
    found = []
    for container in longest[:_MOST_LISTS]:
        pages, scale = _pages_of_entries(container)
        copied = [int(_exclusive(pid, pages).sum()) for pid in forks]
        nbytes = int(sum(copied) * PAGE_BYTES * scale)
        if nbytes >= LEAST_COPIED_BYTES:
            forks_with_copies = sum(count > 0 for count in copied)
            found.append(
                CopiedList(container, int(len(pages) * PAGE_BYTES * scale), nbytes, forks_with_copies)
            )
    return sorted(found, key=lambda each: -each.copied_bytes)


def _pages_of_entries(container: Any) -> tuple[NDArray[np.int64], float]:
    """Return the pages where sampled entries of a list lie, and the factor from the sample to the whole list.

    The entries are not touched: a reference to an entry would write to its page.
    """
    items = id(container) + _ITEMS_OF_LIST
    if type(container) is list:
        items = int(ctypes.c_ssize_t.from_address(items).value)
    number, length, starts = len(container), len(container), [0]
    if number > _RUNS * _ENTRIES_PER_RUN:
        length = _ENTRIES_PER_RUN
        starts = np.linspace(0, number - length, _RUNS).astype(int).tolist()
    addresses = [
        np.frombuffer(
            ctypes.string_at(items + start * _POINTER_BYTES, length * _POINTER_BYTES), dtype=np.int64
        )
        for start in starts
    ]
    return np.unique(np.concatenate(addresses) // PAGE_BYTES), number / (length * len(starts))


_WIDEST_GAP: Final = 4096
"""Pages between two pages of a list that are read with them: 16 MiB of addresses, 32 KiB of pagemap. A guess."""


def _exclusive(pid: int, pages: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of these pages a process has of its own; none if they cannot be read."""
    exclusive = np.zeros(len(pages), dtype=bool)
    begins = np.flatnonzero(np.diff(pages, prepend=-_WIDEST_GAP - 1) > _WIDEST_GAP).tolist()
    try:
        for begin, end in itertools.pairwise([*begins, len(pages)]):
            first = int(pages[begin])
            _, own = pages_of(pid, first, int(pages[end - 1]) - first + 1)
            exclusive[begin:end] = own[pages[begin:end] - first]
    except OSError as error:  # it has ended
        pass_on(error)
        return np.zeros(len(pages), dtype=bool)
    return exclusive
