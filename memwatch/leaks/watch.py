"""LeakWatch: what grows in a process that runs on, from one mark to the next."""

from __future__ import annotations

import functools
import gc
import inspect
import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from memwatch.errors import MemwatchError
from memwatch.gc_pause import collect, pause_gc, recent_objects, resume_gc
from memwatch.heap.classes import identities, without_identities
from memwatch.leaks.cause import holder_of
from memwatch.leaks.diagnose import Diagnosis, diagnose
from memwatch.leaks.excuses import Exemptions
from memwatch.leaks.groups import leak_of, merge_and_sort
from memwatch.leaks.growth import growth
from memwatch.leaks.leak import Leaks
from memwatch.leaks.new_storages import NewStorageMode, NewStorages, storages_behind, tensors_among
from memwatch.words import leaks as words

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from memwatch.leaks.leak import Leak

_COMPARED: Final = 5  # marks whose searches of the heap are kept, the latest ones; a guess
_BEFORE: Final = -1  # the run of storages that are older than the first mark
_MOST_NOTED: Final = 3  # searches for a line between two marks; a guess
F = TypeVar("F", bound="Callable[..., Any]")


class EveryError(MemwatchError, ValueError):
    """The number of calls between two marks makes no sense."""


@dataclass(slots=True)
class _Look:
    """Who held what was made since the first mark, when a mark was set."""

    label: str
    diagnosis: Diagnosis


class LeakWatch:
    """Watch a process that runs on, such as a service or a notebook, for tensors that only become more.

    A mark notes which tensors there are and who holds those made since the first mark. A leak is a holder that had
    more at each of the last marks than at the one before, three marks at least. Between marks the program runs as
    ever: a mark collects garbage once and looks at the heap, about a second for a million objects. Once something
    grew, a plain function that the watch decorates notes which lines make tensors, up to the mark that knows the
    line; an ``async`` one, which other tasks run between, does not.

    Args:
        every: set a mark every so many calls of :meth:`tick`, or of a function that the watch decorates; 0 for
            marks by hand alone.

    Example:
        >>> watch = LeakWatch(every=1000)
        >>> while serving:
        ...     answer(next_request())
        ...     watch.tick()
        >>> print(watch.report())

    Raises:
        EveryError: ``every`` is negative.
    """

    def __init__(self, *, every: int = 0) -> None:
        if every < 0:
            raise EveryError(words.EVERY.format(every=every))
        self._every = every
        self._calls = 0
        self._marks = 0
        self._storages = NewStorages()
        self._looks: deque[_Look] = deque(maxlen=_COMPARED)
        self._noted = NewStorages()  # seen being made, on any thread
        self._notes_lines = False
        self._times_to_note = _MOST_NOTED
        self._old: NDArray[np.int64] | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> LeakWatch:
        self.mark()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.mark()

    def __call__(self, fn: F) -> F:
        """Count the calls of a function, plain or ``async``, as :meth:`tick` does after each, failed ones too."""
        if inspect.iscoroutinefunction(fn):

            @functools.wraps(fn)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                try:
                    return await fn(*args, **kwargs)
                finally:
                    self.tick()

            return cast("F", awaited)

        @functools.wraps(fn)
        def watched(*args: Any, **kwargs: Any) -> Any:
            try:
                return self._noting(fn, args, kwargs) if self._notes_lines else fn(*args, **kwargs)
            finally:
                self.tick()

        return cast("F", watched)

    def _noting(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        mode = NewStorageMode(self._noted, self._marks)
        mode.start()
        try:
            return fn(*args, **kwargs)
        finally:
            mode.stop()

    def tick(self) -> None:
        """Count one call; every so many of them a mark is set, the first one before the second call."""
        with self._lock:
            self._calls += 1
            is_due = self._every > 0 and (self._calls - 1) % self._every == 0
        if is_due:
            self.mark()

    def mark(self, label: str = "") -> None:
        """Note what there is now.

        Args:
            label: the name of the mark in :attr:`growth`; by default its number.
        """
        with self._lock:
            label = label or str(self._marks)
            self._forget_old(recent_objects())
            collect()
            pause = pause_gc()
            try:
                self._list_storages()
                if self._old is None:
                    self._old = identities(gc.get_objects())
                else:
                    self._looks.append(_Look(label, self._look()))
            finally:
                resume_gc(pause)
            self._marks += 1
            self._look_for_lines()

    def _look_for_lines(self) -> None:
        """Note lines up to the next mark if something grows whose line is unknown."""
        self._times_to_note -= self._notes_lines
        self._notes_lines = self._times_to_note > 0 and any(leak.site is None for leak in self.leaks)

    @property
    def leaks(self) -> list[Leak]:
        """The holders that had more at each of the last marks, largest first; bytes and counts of all together."""
        looks = [look.diagnosis for look in self._looks]
        if len(looks) < 2:
            return Leaks()
        grown = growth(looks, (), every_run=True)
        end_s = looks[-1].time_s
        leaks = [
            leak_of(
                each.survivors,
                each.nbytes,
                each.count,
                per_call=False,
                end_s=end_s,
                grows=not each.count,
            )
            for each in grown
        ]
        return Leaks(merge_and_sort(leaks))

    @property
    def growth(self) -> pd.DataFrame:
        """Return the storages of each holder at the last marks.

        They are the storages made since the first mark, and the older ones beside them.

        Columns: ``mark``, ``holder``, ``device``, ``nbytes``, ``count``.
        """
        import pandas as pd

        names = {
            survivor.holding.place: holder_of(survivor)[0]
            for look in self._looks
            for survivor in look.diagnosis.survivors
        }
        rows: dict[tuple[str, object], list[int]] = {}
        for look in self._looks:
            for held in [*(each.holding for each in look.diagnosis.survivors), *look.diagnosis.elders]:
                row = rows.setdefault((look.label, held.place), [0, 0])
                row[0] += held.nbytes
                row[1] += 1
        table = [
            (label, names.get(place, ""), place[0], nbytes, count)  # type: ignore[call-overload, index]
            for (label, place), (nbytes, count) in rows.items()
        ]
        frame: pd.DataFrame = pd.DataFrame(table, columns=["mark", "holder", "device", "nbytes", "count"])
        return frame

    def report(self) -> str:
        """Return the leaks as text, each by its cause."""
        leaks = self.leaks
        if len(self._looks) < 2:
            return words.TOO_FEW_MARKS.format(marks=self._marks)
        if not leaks:
            return words.NOTHING_GREW.format(marks=len(self._looks))
        head = words.GREW.format(
            size=words.sizes_phrase(words.sizes_of(leaks)),
            first=self._looks[0].label,
            last=self._looks[-1].label,
        )
        return "\n".join([head, *map(str, leaks)])

    def _list_storages(self) -> None:
        run = _BEFORE if self._old is None else self._marks
        self._storages.alive()
        noted, self._noted = self._noted, NewStorages()
        for made in list(noted.by_id.values()):
            storage = made.ref()
            if storage is not None and not self._storages.has(storage):
                self._storages.by_id[id(storage)] = made
        for storage in storages_behind(tensors_among(gc.get_objects())):
            self._storages.add(storage, run, certain=True)

    def _forget_old(self, objects: list[object]) -> None:
        """Note that objects are not from before the first mark: they are where some that are dead now were."""
        if self._old is not None:
            self._old = without_identities(self._old, objects)

    def _look(self) -> Diagnosis:
        """Find the holders of storages that were made, or became larger, since the first mark."""
        made = []
        for storage in self._storages.alive():
            if storage.run != _BEFORE:
                made.append(storage)
            elif storage.bytes_now() > storage.nbytes:
                made.append(replace(storage, run=self._marks, certain=True))
        if not made:
            return Diagnosis()
        diagnosis = diagnose(made, Exemptions(state=False), per_call=True, elders=True, old=self._old)
        diagnosis.tell_kinds(by_c_alone=True)
        return diagnosis
