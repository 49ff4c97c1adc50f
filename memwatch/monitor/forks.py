"""Memory that forked processes share with this one, and the lists whose objects they copy.

A fork shares all pages with its parent until one of them writes. Python writes a reference count into each object that
it reads. So the workers of a DataLoader copy the objects of a list in the dataset, one page after the other, although
they only read them. An array or a tensor has one reference count for all its data, and its data stay shared.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.host_allocators import PAGE_BYTES
from memwatch.monitor.mappings import pages_of
from memwatch.signal_handlers import pass_on
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

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
