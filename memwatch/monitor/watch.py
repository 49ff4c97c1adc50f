"""The monitor: a thread that samples the rows of its process, and examines the rows that grow."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

from memwatch.errors import OptionError
from memwatch.monitor import malloc_sampler
from memwatch.monitor.examine import LEAST_COPIED_BYTES
from memwatch.monitor.history import (
    FEWEST_IN_ALL,
    LEAST_BYTES,
    History,
    Sample,
    SampleFile,
    causes_first,
    growth_of,
)
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
from memwatch.words.processes import FOLLOWS, counted, no_file_text

if TYPE_CHECKING:
    from types import TracebackType

    from memwatch.monitor.guard import Guard
    from memwatch.monitor.history import Growth
    from memwatch.monitor.rows import ProcessRows

_LEAST_INTERVAL_S: Final = 0.05
_MOST_CPU_RATIO: Final = 0.005
"""The thread waits so long between samples that these take at most this share of one processor, and searches of the
Python objects as much again: 1 % together."""
_MOST_NOTES: Final = 20
_MOST_ROWS: Final = 3  # in the line about a history that is too short
_SEARCH_AGAIN_BYTES: Final = 1 << 20
"""Memory that no row explains grows by this before the Python objects are searched again."""
CHILDREN: Final = "child processes"
"""The USS of the processes that this one started. It is not a row of this process."""
_WAIT_TENSORS_S: Final = 2.0
_WAIT_SEARCH_S: Final = 20.0
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
        self._unexplained_at_search = 0
        self._children_uss_at_first: dict[int, int] = {}
        self._children_uss_at_search = 0
        self._findings: list[str] = []
        self._cpu_s = self._search_cpu_s = self._cost_of_search_s = 0.0
        self._started_s = time.monotonic()
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
        """Sentences about lists whose objects forked processes, such as workers of a DataLoader, have copied."""
        return list(self._findings)

    @property
    def growth(self) -> list[Growth]:
        """The rows that grow, fastest first; free memory comes after the row that keeps it apart."""
        samples = list(self._history.samples)
        if not samples:
            return []
        series = {row: [sample.rows.get(row, 0) for sample in samples] for row in samples[-1].rows}
        series[CHILDREN] = [sum(sample.children.values()) for sample in samples]
        times_s, ticks = [sample.time_s for sample in samples], [sample.ticks for sample in samples]
        found = [
            growth_of(row, times_s, nbytes, ticks, samples[-1].rss_bytes) for row, nbytes in series.items()
        ]
        return causes_first([each for each in found if each is not None], FREE_ROWS)

    def tick(self) -> None:
        """Count one step of the program, such as a request; the report then has the growth per 1,000 steps."""
        self._ticks += 1

    def sample(self) -> None:
        """Take a sample now, beside those of the thread: at the end of an epoch, for example."""
        if self.is_running:
            self._sample()

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
        """Return the latest figures by name: bytes of each row, of RSS, PSS and USS, and the growth per hour."""
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
        for growth in self.growth:
            values[f"memwatch_{_identifier(growth.row)}_growth_bytes_per_hour"] = growth.bytes_per_hour
        return values

    def report(self) -> str:
        """Return the latest rows and the rows that grow, as text."""
        from memwatch.monitor.process import of_growth, of_process

        latest = self._latest
        if latest is None:
            return "\n".join(["the monitor has no sample", *map("note: {}".format, self.notes)]) + "\n"
        lines = [of_process(latest, self._children_uss_at_first)]
        growing = self.growth
        # `causes_first` puts free memory before the rows in use if it has a cause of its own
        cause = growing[0].row if growing and growing[0].row not in FREE_ROWS else ""
        for growth in growing:
            examined = self._examined.get(growth.row, (0, ""))[1]
            follows = FOLLOWS.format(row=cause) if cause and growth.row in FREE_ROWS else ""
            lines.append(of_growth(growth, follows or examined))
        if not growing:
            lines.append(self._without_growth())
        lines += [f"finding: {visible(finding)}\n" for finding in self.findings]
        lines += [f"note: {note}\n" for note in self.notes]
        return "".join(lines)

    def _without_growth(self) -> str:
        number = len(self._history.samples)
        if number >= FEWEST_IN_ALL:
            return "no row grows\n"
        missing = f"{counted(number, 'sample')} of the {FEWEST_IN_ALL} that are needed"
        first, last = self._history.samples[0].rows, self._history.samples[-1].rows
        more = {row: nbytes - first.get(row, 0) for row, nbytes in last.items()}
        largest = sorted((row for row in more if more[row] >= LEAST_BYTES), key=lambda row: -more[row])[
            :_MOST_ROWS
        ]
        grown = ", ".join(f"{row} +{format_bytes(more[row])}" for row in largest)
        return f"not known whether a row grows: {missing}{grown and f'; since the first, {grown}'}\n"

    def _run(self) -> None:
        before_s = self._cpu_s
        while True:
            # the cost of the sample just taken decides how long to wait
            wait_s = max(self._interval_s, (self._cpu_s - before_s) / _MOST_CPU_RATIO)
            before_s = self._cpu_s
            if self._stopped.wait(wait_s) or self._pid != os.getpid() or sys.is_finalizing():
                return
            self._sample()

    def _sample(self, *, is_first: bool = False) -> None:
        """Take a sample, unless another thread takes one now. No error of memwatch leaves this method."""
        lock = self._lock
        # The thread waits for the main thread at times. So the main thread must not wait for the thread's lock.
        if not lock.acquire(blocking=False):
            return
        try:
            self._take(is_first=is_first)
            if not is_first:
                self._examine_growth()
                self._examine_children()
        except MemoryError:
            self._note("a sample was left out, because there was no memory for it")
        except Exception as error:
            pass_on(error)
            self._note(f"a sample was left out: {type(error).__name__}: {error}")
        finally:
            lock.release()

    def _take(self, *, is_first: bool) -> None:
        before_s = time.thread_time()
        if is_first:
            self._python = python_memory()
            self._cost_of_search_s = time.thread_time() - before_s
            self._python_at_start = self._python
            self._tensors_at_start = ids_of_tensors()
            tensors = tensor_memory()
        else:
            tensors = self._tensors()
        rows = self._rows(tensors)
        if is_first:
            self._native_at_start = rows.nbytes(NATIVE)
            self._paths_at_start = rows.by_path
            rows = self._rows(tensors)
        elif self._has_to_search(rows):
            self._search_python()
            rows = self._rows(tensors)
        self._latest = rows
        alive = {child.pid: child.uss_bytes for child in rows.children}
        first = self._children_uss_at_first
        self._children_uss_at_first = {pid: first.get(pid, uss_bytes) for pid, uss_bytes in alive.items()}
        sample = Sample(
            time_s=time.time(),
            ticks=self._ticks,
            rss_bytes=rows.rss_bytes,
            pss_bytes=rows.pss_bytes,
            uss_bytes=rows.uss_bytes,
            coverage=round(rows.coverage, 4),
            rows={row.row: row.nbytes for row in rows.rows},
            children=alive,
        )
        self._history.add(sample)
        if self._file is not None:
            self._file.write({"pid": self._pid, **vars(sample)})
        if not is_first:
            self._cpu_s += time.thread_time() - before_s

    def _rows(self, tensors: TensorMemory) -> ProcessRows:
        known = Known(self._native_at_start, self._python, tensors)
        return rows_of(known=known)

    def _tensors(self) -> TensorMemory:
        """Find the tensors, in the main thread: another one must not follow graphs that backward frees."""
        found = self._main_thread.call(tensor_memory, _WAIT_TENSORS_S)
        if found is None:
            return tensor_memory(with_graphs=False)
        self._cpu_s += self._main_thread.cpu_s
        return found

    def _has_to_search(self, rows: ProcessRows) -> bool:
        """Return whether memory grew that may be Python objects: they were last searched before."""
        if threading.current_thread() is self._thread:
            allowed_s = (time.monotonic() - self._started_s) * _MOST_CPU_RATIO
            is_affordable = self._search_cpu_s + self._cost_of_search_s <= allowed_s
        else:
            is_affordable = True  # the program asked for this sample
        return is_affordable and abs(_may_be_python(rows) - self._unexplained_at_search) > _SEARCH_AGAIN_BYTES

    def _search_python(self) -> None:
        found = self._main_thread.call(python_memory, _WAIT_SEARCH_S)
        if found is None:
            return
        self._python = found
        self._cost_of_search_s = self._main_thread.cpu_s
        self._search_cpu_s += self._cost_of_search_s
        self._cpu_s += self._main_thread.cpu_s
        rows = self._rows(self._tensors())
        self._lower_start(rows.nbytes(NATIVE_AT_START))
        self._unexplained_at_search = _may_be_python(self._rows(self._tensors()))

    def _lower_start(self, left_bytes: int) -> None:
        """Count less memory as memory from the start, if the program has freed some of it.

        Otherwise a later leak would fill the gap, and would count as memory from the start. Two searches must agree: an
        object that the program freed right after one search is still in the row of Python objects, and makes the
        native rows too small.
        """
        if self._native_at_start is not None and self._native_left is not None:
            self._native_at_start = min(self._native_at_start, max(left_bytes, self._native_left))
        self._native_left = left_bytes

    def _examine_growth(self) -> None:
        for growth in self.growth:
            before, _ = self._examined.get(growth.row, (0, ""))
            if before and growth.nbytes < 2 * before:
                continue
            if growth.row in (NATIVE, OTHER):
                # Its blocks may belong to Python objects that are younger than the last search. If so, the next
                # sample has them in their own row, and this one grows no more.
                self._search_python()
            self._examined[growth.row] = growth.nbytes, self._examine(growth.row)

    def _examine_children(self) -> None:
        """Search for lists that forks copy, each time that the processes have grown by enough for a finding."""
        from memwatch.monitor.examine import copies_in_forks

        uss_at_first = self._children_uss_at_first
        latest = self._latest
        if latest is None or not uss_at_first:
            return
        uss_bytes = sum(child.uss_bytes for child in latest.children)
        if uss_bytes - self._children_uss_at_search < LEAST_COPIED_BYTES:
            self._children_uss_at_search = min(self._children_uss_at_search, uss_bytes)
            return
        found = self._main_thread.call(lambda: copies_in_forks(uss_at_first), _WAIT_SEARCH_S)
        if found is None:
            return
        self._cpu_s += self._main_thread.cpu_s
        self._children_uss_at_search = uss_bytes
        self._findings = found or self._findings  # processes that have ended had copies too

    def _examine(self, row: str) -> str:
        """Return what the growth of a row consists of, as far as that is known."""
        from memwatch.monitor import examine

        latest = self._latest
        if latest is None:
            return ""
        if row == CHILDREN:
            return examine.children(latest.children)
        if row not in (TENSORS, PYTHON):
            return examine.paths(self._paths_at_start, latest.by_path, row)

        def search() -> str:
            if row == TENSORS:
                return examine.tensors(self._tensors_at_start)
            return examine.python_objects(self._python_at_start)

        found = self._main_thread.call(search, _WAIT_SEARCH_S)
        return "not examined: the main thread did not answer in time" if found is None else found

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _forked(self) -> None:
        """Have locks that no thread of the parent holds. The thread itself is not in the child."""
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._main_thread = MainThread(self._stopped)
        self._file = None


def _may_be_python(rows: ProcessRows) -> int:
    return rows.nbytes(NATIVE) + rows.nbytes(NATIVE_AT_START) + rows.nbytes(OTHER)


def _after_fork() -> None:
    malloc_sampler.after_fork()
    for each in list(_alive):
        each._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def monitor(
    path: str | os.PathLike[str] | None = None, *, interval_s: float = 10.0, oom: bool = True
) -> Monitor:
    """Start to watch the memory of this process, in a thread that takes at most 1 % of a processor.

    The monitor samples the rows of :func:`memwatch.process_memory`, keeps a bounded history and finds the rows that
    grow. It examines a growing row once: the holders of new tensors and Python objects, the files of mappings.
    Errors of memwatch become notes in the report; the program never sees them.

    When memory runs out, or nearly reaches a limit of the process, memwatch writes a report; docs/process.md has more.

    Args:
        path: a file for the samples, one line of JSON each; it grows by less than 1 MB an hour.
        interval_s: seconds between two samples. If samples take long, there are fewer.
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
    rows_of(children=False, known=Known(python=PythonMemory(), tensors=TensorMemory()))  # or its error
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
