"""Watch this process with a monitor: a thread that samples the memory by rows, and examines the rows that grow."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from memwatch.errors import OptionError
from memwatch.monitor import malloc_sampler
from memwatch.monitor.budget import (
    MOST_RATIO,
    SAMPLES_CREDIT_S,
    SAMPLES_RATIO,
    SEARCHES_CREDIT_S,
    SEARCHES_RATIO,
    Budget,
)
from memwatch.monitor.copies import LEAST_COPIED_BYTES, note_faults
from memwatch.monitor.device_memory import CACHE, TENSORS_ON_DEVICE, name_of_row
from memwatch.monitor.history import (
    FEWEST_IN_ALL,
    LEAST_BYTES,
    Growth,
    History,
    Sample,
    SampleFile,
    causes_first,
    clock_of,
    growth_of,
)
from memwatch.monitor.limits import MemoryLimits
from memwatch.monitor.main_thread import MainThread
from memwatch.monitor.objects import (
    PythonMemory,
    TensorMemory,
    ids_of_tensors,
    python_memory,
    tensor_memory,
)
from memwatch.monitor.rows import (
    FREE_ROWS,
    NATIVE,
    NATIVE_AT_START,
    OTHER,
    OWN_ROWS,
    PYTHON,
    TENSORS,
    Known,
    rows_of,
)
from memwatch.own_code import OwnThread
from memwatch.signal_handlers import pass_on
from memwatch.sizes import format_bytes
from memwatch.text import visible
from memwatch.words.processes import (
    AGE,
    FOLLOWS,
    NOT_EXAMINED_YET,
    NOT_SEARCHED,
    STRETCHED,
    VERDICT_IN,
    counted,
    no_file_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from memwatch.monitor.device_memory import DeviceMemory
    from memwatch.monitor.guard import Guard
    from memwatch.monitor.rows import ProcessRows

_LEAST_INTERVAL_S: Final = 0.05  # of `monitor(interval_s=...)`; a guess
_EXAMINATION_RATIO: Final = 3.0
"""The cost of the search for the holder of Python objects that grew, compared with a search of all of them: 2.7 in a
program that imports torch."""
_LEAST_LOOK_S: Final = 1.0
"""While the thread waits for the next sample, it reads RSS at intervals of at least this. Reading takes 0.02 ms."""
_FAST_RATIO: Final = 2.0
"""If RSS grows by this factor, the budgets get their credit again, because the program may fail soon. A guess."""
_NEAR_RATIO: Final = 0.8
"""They also get it again, once, if this share of a limit is in use. A guess."""
_FRESH_S: Final = 1.0
"""`report` takes no new sample if the latest is younger. A guess."""
_MOST_REPORT_S: Final = 5.0
"""`report` starts no search that takes longer. A guess."""
_LEAST_STRETCH: Final = 1.5
"""If the gap between samples is at least so many times the interval, the report says so. A guess."""
_MOST_NOTES: Final = 20  # notes that a report has; a guess
_MOST_ROWS: Final = 3  # rows in the line about a history that is too short; a guess
_FEWEST_FOR_ROWS: Final = 8
"""With fewer samples, that line has no rows: they would show how the program started. A guess."""
_SEARCH_AGAIN_BYTES: Final = 1 << 20
"""Memory that no row explains grows by this before the Python objects are searched again. A guess."""
_MAY_BE_PYTHON: Final = (NATIVE, NATIVE_AT_START, OTHER)
_MIXED: Final = (PYTHON, *_MAY_BE_PYTHON)
"""Memory moves between these rows at each search of the Python objects, so their sum shows growth first."""
_LEAST_MIXED_BYTES: Final = 4 * LEAST_BYTES  # growth of their sum that leads to another search; a guess
CHILDREN: Final = "child processes"
"""The USS of the processes that this one started. It is not a row of this process."""
_WAIT_TENSORS_S: Final = 2.0  # that the monitor waits for a search of tensors in the main thread; a guess
_WAIT_SEARCH_S: Final = 20.0  # that it waits for a search of Python objects there; a guess
_alive: Final[weakref.WeakSet[Monitor]] = weakref.WeakSet()


class Monitor:
    """Samples the memory of this process in a thread of its own; see :func:`monitor`."""

    def __init__(self, path: str | os.PathLike[str] | None, interval_s: float) -> None:
        self._interval_s = interval_s
        self._guard: Guard | None = None  # `monitor` starts it
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._stopped = threading.Event()
        self._main_thread = MainThread(self._stopped)
        self._history = History()
        self._latest: ProcessRows | None = None
        self._ticks = 0
        self._notes: deque[str] = deque(maxlen=_MOST_NOTES)
        self._file = None if path is None else SampleFile(Path(path), self._note)
        self._examined: dict[str, tuple[int, str]] = {}
        self._paths_at_start: dict[str, int] = {}
        self._tensors_at_start: frozenset[int] = frozenset()
        self._python = PythonMemory()
        self._python_at_start = self._python
        self._native_at_start: int | None = None
        self._native_left: int | None = None  # of `_native_at_start`, at the latest search
        self._unexplained_at_search = self._unsearched_bytes = 0
        self._mixed_bytes_at_search = 0  # growth of the rows of `_MIXED` together
        self._grown_in: dict[str, int] = {}  # row -> its growth from the first sample to the latest search
        self._children_uss_at_first: dict[int, int] = {}
        self._children_uss_at_search = 0
        self._findings: list[str] = []
        self._cpu_s = self._cost_of_sample_s = self._cost_of_search_s = 0.0
        self._samples_budget = Budget(SAMPLES_CREDIT_S, SAMPLES_RATIO)
        self._searches_budget = Budget(SEARCHES_CREDIT_S, SEARCHES_RATIO)
        self._limits = MemoryLimits()
        self._process = psutil.Process()
        self._is_near_limit = False
        self._rss_at_renewal = 0
        self._sampled_s = time.monotonic()
        self._thread = OwnThread(target=self._run, name="memwatch-monitor", daemon=True)
        _alive.add(self)
        self._sample(is_first=True)
        malloc_sampler.start(self)  # if the dynamic linker loaded it with the program
        self._thread.start()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        """Whether the monitor samples this process: not after :meth:`stop`, and not in a fork of the process."""
        return self._pid == os.getpid() and not self._stopped.is_set()

    @property
    def notes(self) -> list[str]:
        """Problems of the monitor, in sentences."""
        return list(self._notes)

    @property
    def findings(self) -> list[str]:
        """Sentences about Python objects that forked processes, such as workers of a DataLoader, have copied."""
        return list(self._findings)

    @property
    def growth(self) -> list[Growth]:
        """The rows that grow, fastest first; free memory comes after the row that keeps it apart."""
        samples = list(self._history.samples)
        if not samples:
            return []
        found = [_growth_in(samples, row, row) for row in samples[-1].rows]
        found.append(_growth_in(samples, CHILDREN))
        found += [_growth_on(samples, device, row) for device in self._devices for row in device.rows]
        growing = [each for each in found if each is not None]
        mixed = self._mixed_growth(samples)
        row = max(self._grown_in, key=self._grown_in.__getitem__, default="")
        # Name the row that grew until the latest search. Newer memory may be in another row until the next search.
        if mixed is not None and 2 * self._grown_in.get(row, 0) >= mixed.nbytes:
            listed = {each.row for each in growing}
            if row not in listed:
                growing = [each for each in growing if each.row not in _MIXED]
                growing.append(dataclasses.replace(mixed, row=row))
        return causes_first(growing, self._free_rows)

    @property
    def _devices(self) -> list[DeviceMemory]:
        return [] if self._latest is None else self._latest.devices

    @property
    def _free_rows(self) -> frozenset[str]:
        """The rows of memory that an allocator keeps and nobody uses, with those of devices."""
        return FREE_ROWS | {name_of_row(device.device, CACHE) for device in self._devices}

    def _mixed_growth(self, samples: Sequence[Sample]) -> Growth | None:
        found = _growth_in(samples, "", *_MIXED)
        return found if found is not None and found.nbytes >= _LEAST_MIXED_BYTES else None

    def tick(self) -> None:
        """Count one step of the program, such as a request; the report then has the growth per 1,000 steps."""
        self._ticks += 1

    def sample(self) -> None:
        """Take a sample now, beside those of the thread: at the end of an epoch, for example."""
        if self.is_running:
            self._sample()

    @property
    def _age_s(self) -> float:
        """Seconds since the latest sample."""
        return time.monotonic() - self._sampled_s

    def stop(self) -> None:
        """Take a last sample and end the thread. A second call does nothing."""
        if not self.is_running:
            return
        self._stopped.set()
        if self._guard is not None:
            self._guard.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=_WAIT_TENSORS_S)
        self._sample()
        malloc_sampler.stop(self)

    def metrics(self) -> dict[str, float]:
        """Return the latest figures by name: bytes of each row, of RSS, PSS and USS, and the growth per hour.

        The rows of a device are there as soon as the program has used the device.
        """
        latest = self._latest
        if latest is None:
            return {}
        values = {
            "memwatch_rss_bytes": float(latest.rss_bytes),
            "memwatch_pss_bytes": float(latest.pss_bytes),
            "memwatch_uss_bytes": float(latest.uss_bytes),
            "memwatch_coverage_ratio": latest.coverage,
            "memwatch_children": float(len(latest.children)),
            "memwatch_children_uss_bytes": float(sum(child.uss_bytes for child in latest.children)),
            "memwatch_monitor_cpu_seconds_total": self._cpu_s,
        }
        for row in OWN_ROWS:  # the empty ones too: a gauge that comes and goes is of no use
            values[f"memwatch_{_identifier(row)}_bytes"] = float(latest.nbytes(row))
        for device in latest.devices:
            name = _identifier(device.device)
            values[f"memwatch_{name}_used_bytes"] = float(device.used_bytes)
            values[f"memwatch_{name}_capacity_bytes"] = float(device.capacity_bytes)
            for row, nbytes in device.rows.items():
                values[f"memwatch_{name}_{_identifier(row)}_bytes"] = float(nbytes)
        for growth in self.growth:
            values[f"memwatch_{_identifier(growth.row)}_growth_bytes_per_hour"] = growth.bytes_per_hour
        return values

    def report(self) -> str:
        """Return the rows and the rows that grow, as text.

        It takes a sample for that. The first line has the age of the sample if that was not possible.
        """
        from memwatch.monitor.process import of_growth, of_process

        if self.is_running and self._age_s > _FRESH_S:
            self._sample(allows=lambda cost_s: cost_s <= _MOST_REPORT_S)
        latest = self._latest
        if latest is None:
            return "\n".join(["the monitor has no sample", *map("note: {}".format, self.notes)]) + "\n"
        age = "" if self._age_s < 2 * _FRESH_S else AGE.format(seconds=self._age_s)
        lines = [age + of_process(latest, self._children_uss_at_first)]
        growing, free_rows = self.growth, self._free_rows
        first: dict[str, str] = {}  # by device; the rows of the process have no device
        for growth in growing:
            # `causes_first` puts free memory before the rows in use if it has a cause of its own
            cause = first.setdefault(growth.device, growth.row)
            examined = self._examined.get(growth.row, (0, NOT_EXAMINED_YET))[1]
            is_result = growth.row in free_rows and cause not in free_rows
            lines.append(of_growth(growth, FOLLOWS.format(row=cause) if is_result else examined))
        if not growing:
            lines.append(self._without_growth())
        if stretched := self._stretched():
            lines.append(f"{stretched}\n")
        lines += [f"finding: {visible(finding)}\n" for finding in self.findings]
        lines += [f"note: {note}\n" for note in self.notes]
        return "".join(lines)

    def _without_growth(self) -> str:
        samples = self._history.samples
        number = len(samples)
        if number >= FEWEST_IN_ALL:
            return "no row grows\n"
        missing = f"{counted(number, 'sample')} of the {FEWEST_IN_ALL} that are needed"
        if self.is_running:
            seconds = self._samples_budget.seconds_for(
                FEWEST_IN_ALL - number, self._cost_of_sample_s, self._interval_s
            )
            missing += VERDICT_IN.format(seconds=max(math.ceil(seconds - self._age_s), 1))
        if number < _FEWEST_FOR_ROWS:
            return f"not known whether a row grows: {missing}\n"
        # a program grows while it starts
        first, last = samples[number // 4].rows, samples[-1].rows
        more = {row: nbytes - first.get(row, 0) for row, nbytes in last.items()}
        largest = sorted((row for row in more if more[row] >= LEAST_BYTES), key=lambda row: -more[row])[
            :_MOST_ROWS
        ]
        grown = ", ".join(f"{row} +{format_bytes(more[row])}{self._unsearched_text(row)}" for row in largest)
        since = time.strftime("%H:%M:%S", time.localtime(samples[number // 4].time_s))
        return f"not known whether a row grows: {missing}{grown and f'; since {since}, {grown}'}\n"

    def _unsearched_text(self, row: str) -> str:
        is_unsearched = self._unsearched_bytes > _SEARCH_AGAIN_BYTES and row in (NATIVE, OTHER)
        return f" ({NOT_SEARCHED.format(size=format_bytes(self._unsearched_bytes))})" if is_unsearched else ""

    def _stretched(self) -> str:
        """Return a sentence if samples are taken less often than the program asked for."""
        gap_s = self._samples_budget.gap_s(self._cost_of_sample_s, self._interval_s)
        if not self.is_running or gap_s < _LEAST_STRETCH * self._interval_s:
            return ""
        return STRETCHED.format(gap=gap_s, interval=self._interval_s, cost=self._cost_of_sample_s)

    def _run(self) -> None:
        while self._wait():
            self._sample(allows=self._is_affordable)

    def _wait(self) -> bool:
        """Wait until the next sample is due; return False if the thread has to end."""
        begun_s = time.monotonic()
        cost_s = self._cost_of_sample_s
        gap_s = max(self._interval_s, cost_s / MOST_RATIO)
        while True:
            self._notice_fast_growth()
            left_s = max(
                begun_s + gap_s - time.monotonic(),
                self._samples_budget.wait_s(cost_s),
            )
            if left_s <= 0:
                return True
            left_s = min(left_s, max(self._interval_s, _LEAST_LOOK_S))
            if self._stopped.wait(left_s) or self._pid != os.getpid() or sys.is_finalizing():
                return False

    def _notice_fast_growth(self) -> None:
        """Renew the credit of the budgets if RSS has doubled, so that the verdict comes before the program fails."""
        with contextlib.suppress(OSError, psutil.Error):
            rss_bytes = int(self._process.memory_info().rss)
            if rss_bytes >= _FAST_RATIO * self._rss_at_renewal > 0:
                self._renew_credit(rss_bytes)

    def _renew_credit(self, rss_bytes: int) -> None:
        self._rss_at_renewal = rss_bytes
        self._samples_budget.renew_credit()
        self._searches_budget.renew_credit()

    def _is_affordable(self, cost_s: float) -> bool:
        """Return whether the thread may search now. A part of the budget is kept for the first search for a holder."""
        reserved_s = 0.0 if self._examined else _EXAMINATION_RATIO * self._cost_of_search_s
        return self._searches_budget.left_s >= cost_s + reserved_s

    def _sample(
        self, *, is_first: bool = False, allows: Callable[[float], bool] = lambda _cost_s: True
    ) -> None:
        """Take a sample, unless another thread takes one now. No error of memwatch leaves this method.

        Args:
            is_first: whether it is the monitor's first.
            allows: returns whether a search with a cost may be made.
        """
        lock = self._lock
        # The thread waits for the main thread at times. So the main thread must not wait for the thread's lock.
        if not lock.acquire(blocking=False):
            return
        try:
            self._take(is_first=is_first, allows=allows)
            if not is_first:
                with self._spending(self._searches_budget):
                    self._examine_growth(allows)
                    self._examine_children()
        except MemoryError:
            self._note("a sample was left out, because there was no memory for it")
        except Exception as error:
            pass_on(error)
            self._note(f"a sample was left out: {type(error).__name__}: {error}")
        finally:
            lock.release()

    @contextlib.contextmanager
    def _spending(self, budget: Budget) -> Iterator[None]:
        """Measure the CPU time of a block. Only the monitor's own thread spends it from the budget."""
        before_s = time.thread_time() + self._main_thread.cpu_s
        try:
            yield
        finally:
            cost_s = time.thread_time() + self._main_thread.cpu_s - before_s
            self._cpu_s += cost_s
            if threading.current_thread() is self._thread:
                budget.spend(cost_s)
                if budget is self._samples_budget:
                    self._cost_of_sample_s = cost_s

    def _take(self, *, is_first: bool, allows: Callable[[float], bool]) -> None:
        if is_first:
            rows = self._first_rows()
        else:
            with self._spending(self._samples_budget):
                rows = self._rows(self._tensors())
            if self._has_to_search(rows, allows):
                with self._spending(self._searches_budget):
                    self._search_python()
                    rows = self._rows(self._tensors())
        self._unsearched_bytes = max(_may_be_python(rows) - self._unexplained_at_search, 0)
        self._keep(rows)
        if not self._is_near_limit and any(each.used_ratio >= _NEAR_RATIO for each in self._limits.read()):
            self._is_near_limit = True
            self._renew_credit(rows.rss_bytes)

    def _first_rows(self) -> ProcessRows:
        before_s = time.thread_time()
        self._python = python_memory()
        self._cost_of_search_s = time.thread_time() - before_s
        self._python_at_start = self._python
        self._tensors_at_start = ids_of_tensors()
        tensors = tensor_memory()
        rows = self._rows(tensors)
        self._native_at_start = rows.nbytes(NATIVE) + rows.nbytes(NATIVE_AT_START)
        self._paths_at_start = rows.by_path
        before_s = time.thread_time()
        rows = self._rows(tensors)
        self._cost_of_sample_s = time.thread_time() - before_s
        self._unexplained_at_search = _may_be_python(rows)
        self._rss_at_renewal = rows.rss_bytes
        return rows

    def _keep(self, rows: ProcessRows) -> None:
        """Add the rows to the history and to the file."""
        if self._unsearched_bytes > _SEARCH_AGAIN_BYTES:
            rows = dataclasses.replace(
                rows,
                rows=[
                    dataclasses.replace(row, how=self._unsearched_text(row.row)[2:-1] or row.how)
                    for row in rows.rows
                ],
            )
        self._latest = rows
        self._sampled_s = time.monotonic()
        alive = {child.pid: child.uss_bytes for child in rows.children}
        first = self._children_uss_at_first
        self._children_uss_at_first = {pid: first.get(pid, uss_bytes) for pid, uss_bytes in alive.items()}
        note_faults()
        sample = self._sample_of(rows)
        self._history.add(sample)
        if self._file is not None:
            self._file.write({"pid": self._pid, **vars(sample)})

    def _sample_of(self, rows: ProcessRows) -> Sample:
        return Sample(
            time_s=time.time(),
            ticks=self._ticks,
            rss_bytes=rows.rss_bytes,
            pss_bytes=rows.pss_bytes,
            uss_bytes=rows.uss_bytes,
            coverage=round(rows.coverage, 4),
            rows={row.row: row.nbytes for row in rows.rows},
            children={child.pid: child.uss_bytes for child in rows.children},
            is_asked=threading.current_thread() is not self._thread,
            devices={
                name_of_row(device.device, row): nbytes
                for device in rows.devices
                for row, nbytes in device.rows.items()
            },
        )

    def _rows(self, tensors: TensorMemory) -> ProcessRows:
        known = Known(self._native_at_start, self._python, tensors)
        return rows_of(known=known)

    def _tensors(self) -> TensorMemory:
        """Find the tensors in the main thread, because another thread must not follow graphs that a backward frees."""
        found = self._main_thread.call(tensor_memory, _WAIT_TENSORS_S)
        return tensor_memory(with_graphs=False) if found is None else found

    def _has_to_search(self, rows: ProcessRows, allows: Callable[[float], bool]) -> bool:
        """Return whether to search: memory that may be Python objects has changed since the latest search."""
        if abs(_may_be_python(rows) - self._unexplained_at_search) <= _SEARCH_AGAIN_BYTES:
            return False
        if allows(self._cost_of_search_s):
            return True
        # The rows grow together, and the verdict must name the right row. So search although the budget does not allow
        # it. The next search of this kind waits until the growth has doubled.
        growth = self._mixed_growth([*self._history.samples, self._sample_of(rows)])
        return growth is not None and growth.nbytes >= 2 * self._mixed_bytes_at_search

    def _search_python(self) -> None:
        before_s = time.thread_time() + self._main_thread.cpu_s
        found = self._main_thread.call(python_memory, _WAIT_SEARCH_S)
        if found is None:
            return
        self._python = found
        self._cost_of_search_s = time.thread_time() + self._main_thread.cpu_s - before_s
        rows = self._rows(self._tensors())
        self._lower_start(rows.nbytes(NATIVE_AT_START))
        rows = self._rows(self._tensors())
        self._unexplained_at_search = _may_be_python(rows)
        samples = self._history.samples
        growth = self._mixed_growth([*samples, self._sample_of(rows)])
        self._mixed_bytes_at_search = 0 if growth is None else growth.nbytes
        first = samples[0].rows
        self._grown_in = {
            row: sum(rows.nbytes(part) - first.get(part, 0) for part in parts)
            for row, parts in ((PYTHON, (PYTHON,)), (NATIVE, (NATIVE, NATIVE_AT_START)), (OTHER, (OTHER,)))
        }

    def _lower_start(self, left_bytes: int) -> None:
        """Count less memory as memory from the start, if the program has freed some of it.

        Otherwise a later leak would fill the gap, and would count as memory from the start. Two searches must agree: an
        object that the program freed right after one search is still in the row of Python objects, and makes the
        native rows too small.
        """
        if self._native_at_start is not None and self._native_left is not None:
            self._native_at_start = min(self._native_at_start, max(left_bytes, self._native_left))
        self._native_left = left_bytes

    def _examine_growth(self, allows: Callable[[float], bool]) -> None:
        for growth in self.growth:
            before, _ = self._examined.get(growth.row, (0, ""))
            if before and growth.nbytes < 2 * before:
                continue
            cost_s = self._cost_of_search_s * (_EXAMINATION_RATIO if growth.row == PYTHON else 1.0)
            # the thread examines each row once, even if it then owes the time
            is_due = not before and threading.current_thread() is self._thread
            if not is_due and not allows(cost_s):
                continue
            if growth.row in (NATIVE, OTHER):
                # The blocks may belong to Python objects that are younger than the last search. If so, the next sample
                # counts them as Python objects, and this row does not grow any more.
                self._search_python()
            self._examined[growth.row] = growth.nbytes, self._examine(growth)

    def _examine_children(self) -> None:
        """Search for objects that forks copy, when the processes have grown by enough for a finding.

        The next search waits until they have grown by as much again.
        """
        from memwatch.monitor.copies import copies_in_forks

        uss_at_first = self._children_uss_at_first
        latest = self._latest
        if latest is None or not uss_at_first:
            return
        uss_bytes = sum(child.uss_bytes for child in latest.children)
        grown_bytes = self._children_uss_at_search - sum(uss_at_first.values())
        if uss_bytes - self._children_uss_at_search < max(grown_bytes, LEAST_COPIED_BYTES):
            self._children_uss_at_search = min(self._children_uss_at_search, uss_bytes)
            return
        found = self._main_thread.call(lambda: copies_in_forks(uss_at_first), _WAIT_SEARCH_S)
        if found is None:
            return
        self._children_uss_at_search = uss_bytes
        self._findings = found or self._findings  # processes that have ended had copies too

    def _examine(self, growth: Growth) -> str:
        """Return what the growth of a row consists of, as far as that is known."""
        from memwatch.monitor import examine

        latest = self._latest
        if latest is None:
            return ""
        row, device = growth.row, growth.device or "cpu"
        if growth.device:
            row = row.removeprefix(name_of_row(growth.device, ""))
            if row != TENSORS_ON_DEVICE:
                return examine.device_row(row)
        elif row == CHILDREN:
            return examine.children(latest.children)
        elif row not in (TENSORS, PYTHON):
            return examine.paths(self._paths_at_start, latest.by_path, row)

        def search() -> str:
            if row == PYTHON:
                return examine.python_objects(self._python_at_start)
            return examine.tensors(self._tensors_at_start, device)

        found = self._main_thread.call(search, _WAIT_SEARCH_S)
        return "not examined: the main thread did not answer in time" if found is None else found

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _forked(self) -> None:
        """Make new locks in a forked child, because a thread of the parent may hold the old ones.

        The monitor's thread does not exist in the child.
        """
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._main_thread = MainThread(self._stopped)
        self._file = None


def _may_be_python(rows: ProcessRows) -> int:
    return sum(map(rows.nbytes, _MAY_BE_PYTHON))


def _growth_in(samples: Sequence[Sample], name: str, *rows: str) -> Growth | None:
    """Return the growth of the sum of some rows; of the child processes if there are none."""
    series = [
        sum(sample.rows.get(row, 0) for row in rows) if rows else sum(sample.children.values())
        for sample in samples
    ]
    return _growth_of_series(samples, name, series, samples[-1].rss_bytes)


def _growth_on(samples: Sequence[Sample], device: DeviceMemory, row: str) -> Growth | None:
    """Return the growth of a row of a device."""
    name = name_of_row(device.device, row)
    series = [sample.devices.get(name, 0) for sample in samples]
    return _growth_of_series(samples, name, series, device.torch_bytes, device.device)


def _growth_of_series(
    samples: Sequence[Sample], name: str, series: Sequence[int], whole_bytes: int, device: str = ""
) -> Growth | None:
    return growth_of(
        name,
        [sample.time_s for sample in samples],
        series,
        [sample.ticks for sample in samples],
        whole_bytes,
        clock=clock_of(samples),
        device=device,
        is_free=name in FREE_ROWS or name == name_of_row(device, CACHE),
    )


def _after_fork() -> None:
    malloc_sampler.after_fork()
    for each in list(_alive):
        each._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def monitor(
    path: str | os.PathLike[str] | None = None, *, interval_s: float = 10.0, oom: bool = True
) -> Monitor:
    """Start to watch the memory of this process, in a thread that takes less than 1 % of a processor in a long run.

    The monitor samples the rows of :func:`memwatch.process_memory`, keeps a bounded history and finds the rows that
    grow. It examines a growing row once: the holders of new tensors and Python objects, the files of mappings.
    Errors of memwatch become notes in the report; the program never sees them.

    When memory runs out, or nearly reaches a limit of the process, memwatch writes a report; docs/process.md has more.

    Args:
        path: a file for the samples, one line of JSON each; it grows by less than 1 MB an hour.
        interval_s: seconds between two samples. If samples take long, there are fewer, and the report says so.
        oom: whether to write a report when memory runs out: beside `path`, or in the current folder. The program must
            have imported torch.

    Returns:
        The monitor. It is a context manager, ends with `stop()`, and ends with the program.

    Raises:
        OptionError: the interval is not a number above 0, or the file cannot be written.
        ProcessError: this system has no `/proc/PID/smaps`.

    Example:
        >>> watch = memwatch.monitor("memory.jsonl")
        >>> for request in requests:
        ...     answer(request)
        ...     watch.tick()
        >>> print(watch.report())
    """
    if isinstance(interval_s, bool) or not isinstance(interval_s, (int, float)) or not 0 < interval_s < 1e9:
        raise OptionError(f"interval_s is {interval_s!r}; give seconds above 0, such as 10.0")
    if path is not None:
        if not isinstance(path, (str, os.PathLike)):
            raise OptionError(no_file_text(path))
        try:
            Path(path).open("ab").close()
        except OSError as error:
            raise OptionError(
                f"{os.fspath(path)!r} cannot be written: {error}; choose another file"
            ) from None
    # raise a ProcessError here, before the thread starts
    rows_of(children=False, known=Known(python=PythonMemory(), tensors=TensorMemory()))
    watch = Monitor(path, max(float(interval_s), _LEAST_INTERVAL_S))
    if oom and "torch" in sys.modules:  # the search for holders needs it, and the program may not want it
        from memwatch.monitor.guard import start_guard

        watch._guard = start_guard(None if path is None else Path(path).absolute())
    elif oom:
        watch._note("no report is written when memory runs out, because the program has not imported torch")
    return watch


def _identifier(row: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in row.lower().replace("'s", "")).replace(
        "__", "_"
    )
