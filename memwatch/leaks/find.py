"""find_leaks: what does each further call of a function add?"""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from memwatch.edges import EdgeKind
from memwatch.errors import MemwatchError
from memwatch.heap.classes import count_by_class
from memwatch.heap.roots import Held
from memwatch.leaks.diagnose import diagnose
from memwatch.leaks.exemptions import Exemptions
from memwatch.leaks.growth import grown_classes
from memwatch.leaks.memory_in_use import memory_in_use, most_growth_bytes
from memwatch.leaks.new_storage_mode import NewStorageMode
from memwatch.leaks.new_storages import NewStorages, YoungWatch, storages_behind, tensors_among

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memwatch.leaks.leak import Leak
    from memwatch.leaks.new_storages import NewStorage

_NOISE_BYTES: Final = 64


class RunsError(MemwatchError, ValueError):
    """The number of warm-up or measured runs makes no sense."""


def find_leaks(
    fn: Callable[..., Any],
    *args: Any,
    warmup: int = 1,
    runs: int = 2,
    **kwargs: Any,
) -> list[Leak]:
    """Find the tensors that each further call of a function leaves behind.

    The function is called ``warmup + runs`` times with automatic garbage collection off. What the first calls
    leave (caches, lazily made state) is not counted; a leak is what *every* measured call adds. What the function
    returns is dropped.

    Args:
        fn: the function, called with ``args`` and ``kwargs``.
        *args: its arguments.
        warmup: calls before measuring, 0 or more.
        runs: measured calls, 1 or more.
        **kwargs: its keyword arguments.

    Returns:
        Leaks, largest first, bytes and counts per call; empty if there are none.

    Raises:
        RunsError: ``warmup`` is negative or ``runs`` is not positive.
    """
    if warmup < 0 or runs < 1:
        raise RunsError(f"warmup={warmup}, runs={runs}: warmup must be 0 or more and runs 1 or more")
    counter = _Runs(warmup, runs)
    counter.young.start()
    try:
        for run in range(warmup + runs):
            counter.call(run, fn, args, kwargs)
        grown = counter.grown()
        exempt = Exemptions(state=runs == 1)
        if not grown:
            return []
        held = [Held(EdgeKind.CHECKED_FUNCTION, None, fn), *_named(args, kwargs)]
        beside = counter.grown_classes()
        leaks = diagnose(grown, exempt, runs=runs, per_call=True, first_run=warmup, held=held)
        return [replace(leak, beside=beside) for leak in leaks[:1]] + leaks[1:]
    finally:
        counter.young.stop()


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Held]:
    """Yield the arguments: they are the caller's, so what grows inside them is retained."""
    for position, value in enumerate(args):
        yield Held(EdgeKind.ARGUMENT, None, value, position=position)
    for name, value in kwargs.items():
        yield Held(EdgeKind.ARGUMENT, name, value)


class _CountBySize(Counter[int]):
    """Storages counted by size; a class of its own, so that ours are not counted as the program's objects."""


class _Runs:
    """Calls the function and keeps the book of what each call left."""

    def __init__(self, warmup: int, runs: int) -> None:
        self.warmup = warmup
        self.young = YoungWatch()
        self.book = NewStorages()
        self._elders: NewStorages | None = None  # what was there before the measured calls
        self._classes: list[dict[int, int]] = []  # objects by class, at that time and after each further call
        self._added: list[_CountBySize] = []  # after each call: survivors less dead elders, counted by size
        self._dead_elders: Counter[int] = Counter()
        self._lost: Counter[int] = Counter()  # deaths in the last call
        # With no call to look at first, its making of storages must be watched.
        self._suspicious = warmup + runs == 1

    def call(self, run: int, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Call once and note the survivors."""
        before = memory_in_use()
        if self._suspicious:
            watch = NewStorageMode(self.book, run)
            watch.start()
            try:
                fn(*args, **kwargs)
            finally:
                watch.stop()
        else:
            fn(*args, **kwargs)
        known = [made for made in self.book.by_id.values() if made.run < run]
        self._note(run)
        alive = self.book.alive()
        added = _CountBySize(made.nbytes for made in alive)
        self._lost = Counter(made.nbytes for made in known if not made.alive)
        if self._elders is not None:
            dead = Counter(made.nbytes for made in self._elders.by_id.values() if not made.alive)
            self._lost += dead - self._dead_elders
            self._dead_elders = dead
            added.subtract(dead)
            if alive:
                self._classes.append(count_by_class(gc.get_objects()))
        elif alive and run >= self.warmup - 1:
            self._note_heap()
        self._added.append(added)
        self._suspicious = bool(alive) or most_growth_bytes(before, memory_in_use()) > _NOISE_BYTES

    def grown_classes(self) -> tuple[tuple[str, int], ...]:
        """Return the classes of which every further call added objects, with the least number per call."""
        return grown_classes(self._classes)

    def _note(self, run: int) -> None:
        young = self.young.survivors()
        if young:
            for storage in storages_behind(young):
                self.book.add(storage, run)

    def _note_heap(self) -> None:
        """Remember what was there before: a window that moves drops an old tensor for each new one."""
        objects = gc.get_objects()
        self._classes.append(count_by_class(objects))
        self._elders = NewStorages()
        for storage in storages_behind(tensors_among(objects)):
            if not self.book.has(storage):
                self._elders.add(storage, -1)

    def grown(self) -> list[NewStorage]:
        """Return the survivors of the measured calls, if every measured call added some.

        Counted are all survivors, less those that only took the place of dead ones; and each size by itself, for
        something else may shrink meanwhile, such as what the first calls left.
        """
        counts = [_CountBySize(), *self._added][self.warmup :]
        sizes = {size for size in counts[-1] if _rising([count[size] for count in counts])}
        if _rising([count.total() for count in counts]):
            last = len(self._added) - 1
            fresh = Counter(made.nbytes for made in self._measured() if made.run == last)
            sizes |= {size for size in counts[-1] if fresh[size] > self._lost[size]}
        return [made for made in self._measured() if made.nbytes in sizes]

    def _measured(self) -> list[NewStorage]:
        return [made for made in self.book.by_id.values() if made.run >= self.warmup and made.alive]


def _rising(counts: list[int]) -> bool:
    return all(earlier < later for earlier, later in pairwise(counts))
