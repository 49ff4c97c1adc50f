"""Find the Python objects that forked processes, such as workers of a DataLoader, have copied.

A fork shares all pages with its parent until one of them writes. Python writes a reference count into each object that
it reads. So the workers of a DataLoader copy the objects of the dataset, one page after the other, although they only
read them. An array or a tensor has one reference count for all its data, and its data stay shared.

The kernel shows the pages that a fork shares with no other process. memwatch draws some of these pages, finds the
objects of this process on them, and searches for their holders. It does not matter how the dataset keeps the objects.

A fork also has a page alone if this process wrote the page, and so copied it. There are two ways to tell the cases
apart. If this process copied a page, two forks that started together still share the old page. And this process needs a
page fault for each page that it copies. So if a fork has more pages alone than this process has had faults since the
fork, the fork has copied at least the difference.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections import Counter
from dataclasses import dataclass, replace
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.containers import ALL
from memwatch.host_allocators import PAGE_BYTES
from memwatch.monitor.examine import MOST_STEPS, NOT_SEARCHED, can_search, paths_from_roots, words_of
from memwatch.monitor.mappings import PageMap, ProcessError, Use, read_mappings, union_of
from memwatch.monitor.objects import class_name, objects_on_pages
from memwatch.signal_handlers import pass_on
from memwatch.sizes import format_bytes
from memwatch.words.processes import COPIES, ENTRIES_IN, counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from memwatch.heap.search import Tree
    from memwatch.monitor.mappings import Mapping

LEAST_COPIED_BYTES: Final = 16 << 20
"""If all processes together have copied fewer bytes, the program is not worth a change. A guess."""
_LEAST_OBJECT_BYTES: Final = 4 << 20
"""A structure with fewer bytes of objects is not named. Forks also copy objects of libraries when they collect garbage:
1.2 MiB is the largest structure (a table of torch's) of a program that imports torch, pandas and sympy."""
_FEWEST_FORKS: Final = 2
"""Two forks of one age still share a page that this process copied. With one fork, the kernel does not show who copied
a page."""
_MOST_READINGS: Final = 256
"""The most readings of the page faults of this process. Above this, every second one is dropped. A guess."""
_MOST_SECONDS_BETWEEN: Final = 1.0
"""Forks with less time between their starts count as started together. Sixteen workers of a DataLoader started 0.10 to
0.17 s after each other in a process of 0.5 GiB on a busy machine. The fork of a larger process takes longer, so this is
a guess."""
_LEAST_FAULTS: Final = 0.8
"""A fork needs a page fault for each page that it copies. The estimate of its pages has an error of a few percent."""
_SAMPLED_PAGES: Final = 1024
"""With so many pages, the estimate for a structure with half of the copies has a standard deviation of 1.6 %."""
_FEWEST_SAMPLES: Final = 8  # of a structure that is named; a guess
_TYPE_IN_OBJECT: Final = object.__basicsize__ - 8
"""Offset of the type in an object of CPython (bytes)."""
_COMPARED_BYTES: Final = 16
"""The type, and the first field behind it: the length of a text or a list, the value of a float."""


@dataclass(frozen=True)
class Copies:
    """Objects of one structure that forked processes have copied.

    Attributes:
        kind: the class of the structure, such as `list`.
        holder: the variable that holds it.
        entries: the length of a container; None for other objects, and for several containers.
        object_bytes: the pages of this process that some fork has copied.
        copied_bytes: the pages of all forks together.
        forks: how many forks have copies.
    """

    kind: str
    holder: str
    entries: int | None
    object_bytes: int
    copied_bytes: int
    forks: int

    def with_forks_of(self, other: Copies) -> Copies:
        """Return the copies of the same structure in these forks and in those of another group."""
        return replace(
            self,
            object_bytes=max(self.object_bytes, other.object_bytes),
            copied_bytes=self.copied_bytes + other.copied_bytes,
            forks=self.forks + other.forks,
        )

    @property
    def text(self) -> str:
        """The finding and the advice, in sentences."""
        return COPIES.format(
            forks=f"{counted(self.forks, 'forked process')} {'has' if self.forks == 1 else 'have'}",
            copied=format_bytes(self.copied_bytes),
            kind=self.kind,
            holder=self.holder,
            entries="" if self.entries is None else ENTRIES_IN.format(count=self.entries),
            size=format_bytes(self.object_bytes),
        )


def copies_in_forks(pids: Iterable[int]) -> list[str]:
    """Return sentences about the objects that forks of this process have copied.

    Args:
        pids: the processes that this one started.
    """
    return [each.text for each in copied_structures(forks_of(pids))]


@dataclass(frozen=True)
class Fork:
    """A fork of this process that has started no other program since.

    Attributes:
        pid: its number.
        start_s: when it started, in seconds since the start of the system.
    """

    pid: int
    start_s: float

    @property
    def page_faults(self) -> int:
        """The page faults that it has had. It has copied at most so many pages."""
        return _faults_in(_fields_of(self.pid))


def forks_of(pids: Iterable[int]) -> list[Fork]:
    """Return the processes that are forks of this one and have started no other program since."""
    mine = _start_of_program(_fields_of(os.getpid()))
    found = []
    for pid in pids if mine is not None else ():
        fields = _fields_of(pid)
        if _start_of_program(fields) == mine:
            found.append(Fork(pid, int(fields[_START]) / os.sysconf("SC_CLK_TCK")))
    return found


_readings: Final[list[tuple[float, int]]] = []
"""Times, in seconds since the start of the system, and the page faults of this process up to each time."""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_readings.clear)


def note_faults() -> None:
    """Remember the page faults of this process: a fork that starts later may be compared with them."""
    fields = _fields_of(os.getpid())
    if fields:
        _readings.append((time.clock_gettime(time.CLOCK_BOOTTIME), _faults_in(fields)))
    if len(_readings) > _MOST_READINGS:
        del _readings[-2::-2]


def _faults_since(fork: Fork) -> int | None:
    """Return an upper bound of this process's page faults since a fork; None without a reading before the fork."""
    before = [faults for time_s, faults in _readings if time_s <= fork.start_s]
    fields = _fields_of(os.getpid())
    return _faults_in(fields) - before[-1] if before and fields else None


def _of_one_age(forks: Iterable[Fork]) -> list[list[Fork]]:
    """Group forks that started together.

    If this process wrote a page between two forks, the older fork has the old page alone, as if it had copied it.
    """
    groups: list[list[Fork]] = []
    for fork in sorted(forks, key=lambda each: each.start_s):
        if groups and fork.start_s - groups[-1][-1].start_s <= _MOST_SECONDS_BETWEEN:
            groups[-1].append(fork)
        else:
            groups.append([fork])
    return [group for group in groups if len(group) >= _FEWEST_FORKS]


def _fields_of(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the name of the program; empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError as error:
        pass_on(error)
        return []


def _faults_in(fields: list[bytes]) -> int:
    """Return the page faults of a process. A page that was swapped out is read and copied in one major fault."""
    return int(fields[_FAULTS]) + int(fields[_MAJOR_FAULTS]) if fields else 0


def _start_of_program(fields: list[bytes]) -> list[bytes] | None:
    """Return the addresses of a process's code and stack, which are random and equal in forks; None if unknown."""
    found = fields[_START_OF_CODE : _START_OF_CODE + 3]
    # the kernel writes 0 or 1 if this process may not know them
    return found if found and all(int(address) > PAGE_BYTES for address in found) else None


_FAULTS: Final = 7
_MAJOR_FAULTS: Final = 9
_START: Final = 19
_START_OF_CODE: Final = 23
"""Indices of `minflt`, `majflt`, `starttime` and `startcode` among the fields after the name of the program. `endcode`
and `startstack` follow (proc_pid_stat(5))."""


def copied_structures(forks: Sequence[Fork]) -> list[Copies]:
    """Return the structures whose objects forks of this process have copied, most bytes first.

    Args:
        forks: the forks, as :func:`forks_of` returns them.
    """
    # the search copies pages of this process, so all facts about pages come first
    groups = [_Group.of(group) for group in _of_one_age(forks)]
    in_groups = {fork.pid for group in groups for fork in group.forks}
    groups += [_Group.of([fork]) for fork in forks if fork.pid not in in_groups]
    merged: dict[tuple[str, str], Copies] = {}
    for each in (copies for group in groups for copies in _copied_by(group)):
        other = merged.get((each.kind, each.holder))
        merged[each.kind, each.holder] = each if other is None else each.with_forks_of(other)
    return sorted(merged.values(), key=lambda each: -each.copied_bytes)


@dataclass(frozen=True)
class _Group:
    """Several forks of one age, or one fork.

    Attributes:
        forks: the forks.
        pages: the pages that each has of its own.
        faults: the page faults of each. A fork copies at most one page per fault.
        faults_here: how many of the pages this process may have copied: its page faults since the fork, if there is
            only one fork, and 0 for several. None if the faults are unknown.
    """

    forks: Sequence[Fork]
    pages: list[NDArray[np.int64]]
    faults: NDArray[np.int64]
    faults_here: int | None

    @classmethod
    def of(cls, forks: Sequence[Fork]) -> _Group:
        """Read the pages of forks, and then the page faults, so that there is a fault for each page that was copied."""
        pages = _copied_pages([fork.pid for fork in forks])
        faults = np.array([fork.page_faults for fork in forks])
        return cls(forks, pages, faults, _faults_since(forks[0]) if len(forks) == 1 else 0)

    @property
    def is_known(self) -> bool:
        """Whether it is known who copied the pages. A fork that has ended shows no pages."""
        running = sum(len(each) > 0 for each in self.pages)
        return self.faults_here is not None and running >= min(len(self.forks), _FEWEST_FORKS)

    def proven(self, pages: Any) -> Any:
        """Return how many of so many pages this process cannot have copied. `pages` is a number or an array."""
        return np.maximum(pages - (self.faults_here or 0), 0)


def _copied_by(group: _Group) -> list[Copies]:
    """Return the structures whose objects the forks of a group have copied."""
    pages = np.concatenate(group.pages)
    if not group.is_known or group.proven(len(pages)) * PAGE_BYTES < LEAST_COPIED_BYTES:
        return []
    # a generator of our own, so that the program's random numbers stay the same
    random = np.random.default_rng(0)
    drawn = random.choice(len(pages), min(len(pages), _SAMPLED_PAGES), replace=False)
    pages_per_sample = len(pages) / len(drawn)
    sample = _Sample(pages[drawn], group.pages, pages_per_sample)
    sample.find_objects([fork.pid for fork in group.forks], random)
    fewest = max(_FEWEST_SAMPLES, math.ceil(LEAST_COPIED_BYTES / (pages_per_sample * PAGE_BYTES)))
    if len(sample.objects) < fewest:
        return []
    found = [
        sample.copies(places, kind, holder, lengths[0] if len(lengths) == 1 else None, group)
        for (kind, holder), (places, lengths) in sample.structures(fewest).items()
    ]
    return [
        each
        for each in found
        if each.object_bytes >= _LEAST_OBJECT_BYTES and each.copied_bytes >= LEAST_COPIED_BYTES
    ]


def _copied_pages(forks: Sequence[int]) -> list[NDArray[np.int64]]:
    """Return the pages that each fork has alone, where this process has memory of malloc and of Python.

    Only the mappings of this process are compared, because its pages may be swapped out.
    """
    mine = union_of((each.start, each.end) for each in _data_of(os.getpid())) // PAGE_BYTES
    found = []
    for fork in forks:
        pages, page_map = [np.empty(0, dtype=np.int64)], PageMap(fork)
        try:
            for mapping in _data_of(fork):
                if mapping.private:
                    first, count = mapping.start // PAGE_BYTES, (mapping.end - mapping.start) // PAGE_BYTES
                    pages.append(page_map.pages(first, count)[1].numbers())
        except (OSError, ProcessError) as error:  # it has ended
            pass_on(error)
        own = np.concatenate(pages)
        at = np.searchsorted(mine[:, 0], own, side="right") - 1
        found.append(own[(at >= 0) & (own < mine[:, 1][at])])
    return found


def _data_of(pid: int) -> list[Mapping]:
    """Return the mappings that may have objects, stacks included, because the kernel may join an arena to a stack."""
    return [each for each in read_mappings(pid) if each.is_plain or each.use is Use.ARENA]


class _Sample:
    """Pages that were drawn from those that forks have copied, and one object on each of them.

    Args:
        pages: the pages, a page as often as it was drawn.
        pages_by_fork: all copied pages of each fork.
        pages_per_sample: how many copied pages one of the sample stands for.
    """

    def __init__(
        self, pages: NDArray[np.int64], pages_by_fork: list[NDArray[np.int64]], pages_per_sample: float
    ) -> None:
        self._pages = pages
        self._has_page = np.stack([np.isin(pages, each) for each in pages_by_fork], axis=1)
        self._pages_per_sample = pages_per_sample
        self.objects: list[Any] = []
        self._of_object: list[int] = []

    def find_objects(self, forks: Sequence[int], random: np.random.Generator) -> None:
        """Choose an object on each page, if there is one that a fork has too."""
        candidates = objects_on_pages(np.unique(self._pages))
        ids = np.fromiter(map(id, candidates), dtype=np.int64, count=len(candidates))
        order = np.argsort(ids)
        numbers = ids[order] // PAGE_BYTES
        first, last = (np.searchsorted(numbers, self._pages, side=side) for side in ("left", "right"))
        for place in np.flatnonzero(last > first).tolist():
            at = int(order[random.integers(first[place], last[place])])
            fork = forks[int(self._has_page[place].argmax())]
            if _has_object(fork, int(ids[at])):
                self.objects.append(candidates[at])
                self._of_object.append(place)
        candidates.clear()

    def structures(self, fewest: int) -> dict[tuple[str, str], tuple[list[int], list[int | None]]]:
        """Return, by class and holder of a structure, the places of its pages and its lengths.

        The structure of an object is the last one on the path from the program's roots that has many of the objects.

        Args:
            fewest: how many objects a structure must have.
        """
        if not can_search():
            (kind, _), *_ = Counter(class_name(type(obj)) for obj in self.objects).most_common(1)
            return {(kind, NOT_SEARCHED): (self._of_object, [None])}
        from memwatch.heap.paths import steps_of
        from memwatch.heap.snapshot import Snapshot

        found: dict[tuple[str, str], tuple[list[int], list[int | None]]] = {}
        with Snapshot(self.objects, deep=True) as snapshot:
            tree = paths_from_roots(snapshot)
            paths = _Paths(tree, [snapshot.position(obj) for obj in self.objects])
            words: dict[tuple[int, ...], str] = {}
            for node, numbers in paths.by_structure(fewest).items():
                obj, owner = snapshot.objects[node], snapshot.objects[tree.above[node]]
                if not _is_data(obj, owner):
                    continue
                begin = paths.begins[node]
                if begin not in words:
                    words[begin] = words_of([step for step in steps_of(snapshot, begin) if not step.hidden])
                places, lengths = found.setdefault((class_name(type(obj)), words[begin]), ([], []))
                places += [self._of_object[number] for number in numbers]
                lengths.append(_length_of(obj))
        self.objects.clear()
        return found

    def copies(
        self,
        places: Sequence[int],
        kind: str,
        holder: str,
        entries: int | None,
        group: _Group,
    ) -> Copies:
        """Return how much of a structure forks have copied.

        Args:
            places: of its pages in the sample.
            kind: the class of the structure.
            holder: the variable that holds it.
            entries: its length, if it has one.
            group: the forks. If a fork has fewer page faults than pages, this process has copied the pages.
        """
        has_page = self._has_page[list(places)]
        # a page that n forks have was drawn n times as often
        weights = self._pages_per_sample / has_page.sum(axis=1)
        by_fork = weights @ has_page
        has_copied = group.faults >= _LEAST_FAULTS * by_fork
        by_fork = group.proven(by_fork * has_copied)
        object_pages = int(group.proven(weights @ has_page[:, has_copied].any(axis=1)))
        return Copies(
            kind=kind,
            holder=holder,
            entries=entries,
            object_bytes=object_pages * PAGE_BYTES,
            copied_bytes=int(by_fork.sum()) * PAGE_BYTES,
            forks=int((by_fork > 0).sum()),
        )


class _Paths:
    """The shortest paths to some objects. A path along a linked list has as many steps as the list has entries.

    Attributes:
        begins: for each position on a path, the first positions of its own path.

    Args:
        tree: the search for the paths.
        targets: the positions of the objects.
    """

    def __init__(self, tree: Tree, targets: Sequence[int]) -> None:
        self._above = tree.above.item
        self._targets = targets
        self._number_below: Counter[int] = Counter(at for at in targets if tree.reaches(at))
        self.begins: dict[int, tuple[int, ...]] = {}
        pieces = []  # each leads from an object to a position on the path of an earlier one, or to a root
        for target in self._number_below:
            piece, at = [], target
            while at not in self.begins:
                piece.append(at)
                self.begins[at] = ()
                if (above := self._above(at)) == at:
                    break
                at = above
            pieces.append(piece)
            for position in reversed(piece):
                begin = self.begins[self._above(position)]
                self.begins[position] = begin if len(begin) == MOST_STEPS else (*begin, position)
        for piece in reversed(pieces):
            for position in piece:
                if (above := self._above(position)) != position:
                    self._number_below[above] += self._number_below[position]

    def by_structure(self, fewest: int) -> dict[int, list[int]]:
        """Return the numbers of the objects by the position of their structure.

        Args:
            fewest: how many objects a structure must have.
        """
        found: dict[int, list[int]] = {}
        for number, target in enumerate(self._targets):
            at = target
            while at in self.begins and self._number_below[at] < fewest and self._above(at) != at:
                at = self._above(at)
            if self._number_below[at] >= fewest:
                found.setdefault(at, []).append(number)
        return found


def _has_object(pid: int, address: int) -> bool:
    """Return whether a fork has an object of the same type and length at an address; True if that cannot be read.

    Both processes may have made an object there since the fork.
    """
    place = address + _TYPE_IN_OBJECT
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
            return os.pread(file.fileno(), _COMPARED_BYTES, place) == ctypes.string_at(place, _COMPARED_BYTES)
    except OSError as error:  # it may not be traced, or it has ended
        pass_on(error)
        return True


_CODE: Final = (CodeType, FrameType, FunctionType, ModuleType, type)


def _is_data(obj: Any, owner: Any) -> bool:
    """Return whether an object is data of the program: no root, no code, and no namespace of a module or a class."""
    from memwatch.heap.classes import is_a
    from memwatch.heap.roots import Root

    if type(obj) is Root or any(is_a(obj, each) for each in _CODE):
        return False
    return not (type(obj) is dict and (is_a(owner, ModuleType) or is_a(owner, type)))


def _length_of(obj: Any) -> int | None:
    """Return the length of a container or an array of objects, without a call of a method of the program."""
    from memwatch.heap.classes import is_a

    base = next((each for each in ALL if is_a(obj, each)), None)
    if base is not None:
        return int(base.__len__(obj))
    return int(_SIZE_OF_ARRAY(obj)) if is_a(obj, np.ndarray) else None


_SIZE_OF_ARRAY: Final = np.ndarray.__dict__["size"].__get__
