"""Report on this process when its memory runs out: at an uncaught error of an allocator, or close to a limit.

Nothing is recorded while the program is healthy. Hooks wait for the error that ends the program or one of its threads.
If the process has a limit, a thread compares it with the memory in use, because the kernel kills a process at a
cgroup's limit without an error. The less room is left, the more often the thread reads the figures.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import time
import weakref
from collections import deque
from multiprocessing import parent_process
from multiprocessing import util as processes_util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from memwatch._torch.workers import notice_errors
from memwatch.devices import Failure, is_out_of_memory
from memwatch.errors import MemoryLimitError, add_note
from memwatch.job import JobPlace, default_name, named_for, program_name
from memwatch.monitor.limits import ADDRESS_SPACE, MemoryLimits
from memwatch.monitor.live_memory import LiveMemory, live_memory
from memwatch.monitor.main_thread import MainThread
from memwatch.monitor.objects import PythonMemory, tensor_memory
from memwatch.monitor.rows import Known, rows_of
from memwatch.monitor.shortage import NOTES, Shortage, head_of, json_of, note_of, page_of, report_of
from memwatch.output_files import OutputError, write_whole
from memwatch.own_code import OwnThread
from memwatch.reserve import Reserve
from memwatch.signal_handlers import pass_on, suppress
from memwatch.text import visible
from memwatch.words.processes import RAN_OUT, not_written_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from memwatch.monitor.limits import Limit

USED_RATIO: Final = 0.97
"""The share of a limit at which the report is written. A guess."""
_RESERVED_BYTES: Final = 128 << 20
"""Address space for the report: a search of 340,000 objects takes 86 MiB of it for a moment."""
_PARTS_OF_LIMIT: Final = 32  # the reserve takes at most one of so many parts of a limit; a guess
_FASTEST_BYTES_PER_S: Final = 1 << 30
"""A program may fill memory this fast: one thread that writes new pages filled 0.4 to 1.1 GiB a second."""
_LEAST_WAIT_S: Final = 0.02  # between two readings of the thread; a guess
_MOST_WAIT_S: Final = 10.0  # between two readings of the thread; a guess
_STALLED_PERCENT: Final = 10.0
"""If processes wait for memory for a larger part of the time, the thread reads as often as it may. A guess."""
_WAIT_SEARCH_S: Final = 5.0  # that the search of the holders may wait for the main thread; a guess
_MOST_OBJECTS_FOR_ROWS: Final = 500_000
"""Adding up more Python objects takes longer than about 1 s, and memory that is short."""
_MOST_READINGS: Final = 100  # readings that the report lists, the latest ones; a guess
_PAUSE_S: Final = 60.0  # between reports on errors of threads; a guess
_LEAST_STEP_S: Final = 1.0  # between the readings that the report lists; a guess
_REPORTS: Final = (".txt", ".html", ".json")
"""The JSON comes last. Once a program can read it, the other files are complete."""
_SUFFIXES: Final = (*_REPORTS, ".jsonl")
_alive: Final[weakref.WeakSet[Guard]] = weakref.WeakSet()


class Guard:
    """Waits until memory runs out, and then writes the report; see :func:`start_guard`."""

    def __init__(self, path: Path | None, root: Path) -> None:
        self._path = path
        self._folder = Path(os.curdir)
        with suppress(OSError):  # somebody has removed it
            self._folder = Path.cwd()  # the program may change it
        self._limits = MemoryLimits(root)
        self._pid = os.getpid()
        self._stopped = threading.Event()
        self._main_thread = MainThread(self._stopped)
        limits = self._limits.read()
        self._reserve = Reserve(_reserved_bytes(limits))
        self._id_of_last_error = 0  # only the id, so that the error does not live longer
        self._is_reporting = False
        self._has_warned = False
        self._num_errors = 0
        self._last_error_s = -_PAUSE_S
        self._base: Path | None = None
        self._writing = threading.Lock()  # the thread and the hook may write at the same time
        self._recent: deque[tuple[float, int]] = deque(maxlen=_MOST_READINGS)
        self._process = psutil.Process()
        self._previous_hook = sys.excepthook
        self._previous_thread_hook = threading.excepthook
        self._end_notice = notice_errors(self._in_worker)
        self._thread = OwnThread(target=self._watch, name="memwatch-oom", daemon=True)
        self._begin(has_limit=bool(limits))

    def _begin(self, *, has_limit: bool) -> None:
        self._reserve.take()
        sys.excepthook = self._hook
        threading.excepthook = self._thread_hook
        atexit.register(self._at_exit)
        # In a child process, multiprocessing prints an uncaught error itself, after it has run the finalizers. So a
        # finalizer takes the place of the hook. A fork loses the finalizers of its parent.
        self._add_finalizer()
        processes_util.register_after_fork(self, Guard._add_finalizer)
        _alive.add(self)
        if has_limit:
            self._thread.start()

    @property
    def is_active(self) -> bool:
        """Whether errors are reported."""
        return not self._stopped.is_set()

    def stop(self) -> None:
        """End the thread and take the hooks back. A second call does nothing."""
        if not self.is_active:
            return
        self._stopped.set()
        if sys.excepthook == self._hook:
            sys.excepthook = self._previous_hook
        if threading.excepthook == self._thread_hook:
            threading.excepthook = self._previous_thread_hook
        atexit.unregister(self._at_exit)
        self._finalizer.cancel()
        self._end_notice()
        self._reserve.release()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=_WAIT_SEARCH_S)

    # the hooks

    def _hook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._id_of_last_error = id(error)
        self.report_error(error)
        self._previous_hook(kind, error, trace)

    def _thread_hook(self, arguments: Any) -> None:
        error = arguments.exc_value
        # a server may lose a thread with each request
        if error is not None and time.monotonic() - self._last_error_s >= _PAUSE_S:
            self.report_error(error)
        self._previous_thread_hook(arguments)

    def _at_exit(self) -> None:
        """Report the last error, in case the program has replaced our hook."""
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException) and id(error) != self._id_of_last_error:
            self.report_error(error)

    def _in_worker(self, error: BaseException) -> None:
        """Report in a worker process of a DataLoader. Its parent raises the error again, but has other memory.

        The note becomes a part of the text that the parent raises.
        """
        if parent_process() is not None and time.monotonic() - self._last_error_s >= _PAUSE_S:
            self.report_error(error)

    def _add_finalizer(self) -> None:
        self._finalizer = processes_util.Finalize(None, self._at_end_of_child, exitpriority=1000)

    def _at_end_of_child(self) -> None:
        error = sys.exc_info()[1]
        if error is not None:
            self.report_error(error)

    # the report on an error

    def report_error(self, error: BaseException) -> None:
        """If an allocator raised the error, write the report and add a note to the error. This raises no error."""
        found = next(filter(_is_shortage, _shown_errors(error)), None)
        if found is None or not self.is_active or self._is_reporting or _has_note_of_worker(found):
            return
        self._is_reporting = True
        self._num_errors += 1
        self._reserve.release()
        try:
            self._explain(error, found)
        except BaseException as own:  # an error of memwatch must not replace the program's error
            _say(f"{RAN_OUT}, and the report failed: {type(own).__name__}")
        finally:
            self._is_reporting = False
            self._last_error_s = time.monotonic()
            self._reserve.take()

    def _explain(self, error: BaseException, found: BaseException) -> None:
        shortage = Shortage(recent=list(self._recent))
        shortage.set_error(found)
        self._read_quick_facts(shortage)

        def search() -> None:
            shortage.live = live_memory(error)

        # read the rows first, because memory that the search for holders frees would count in them
        shortage.note_failure("the rows with the Python objects", lambda: self._read_rows(shortage))
        shortage.note_failure("the holders", search)
        files = self._write(shortage)
        if not any(note.partition(":")[0] == "memwatch" for note in _notes_of(found)):
            add_note(found, note_of(shortage))
        if len(files) == len(_REPORTS):
            what = head_of(shortage) if shortage.is_far_from_limits else RAN_OUT
            _say(f"{what}; the report is in {files[0]} ({', '.join(each.suffix for each in files[1:])})")

    # the report close to a limit

    def _watch(self) -> None:
        """Compare the memory in use with the limits until the program ends or the report is written."""
        wait_s, fastest = 0.0, float(_FASTEST_BYTES_PER_S)
        before: tuple[float, int] | None = None
        while not self._stopped.wait(wait_s) and self._pid == os.getpid() and not sys.is_finalizing():
            wait_s = _MOST_WAIT_S
            try:
                limits = self._limits.read()
                now_s, rss_bytes = time.time(), int(self._process.memory_info().rss)
                if not self._recent or now_s - self._recent[-1][0] >= _LEAST_STEP_S:
                    self._recent.append((now_s, rss_bytes))
                if before is not None and now_s > before[0]:
                    fastest = max(fastest, (rss_bytes - before[1]) / (now_s - before[0]))
                before = now_s, rss_bytes
                near = max(limits, key=lambda each: each.used_ratio, default=None)
                if near is None or self._has_warned:
                    continue
                if near.used_ratio >= USED_RATIO:
                    self._has_warned = True
                    self._warn(near)
                    continue
                room_bytes = min(USED_RATIO * each.limit_bytes - each.used_bytes for each in limits)
                # half the time that a fast program needs to fill the room
                wait_s = min(max(room_bytes / fastest / 2, _LEAST_WAIT_S), _MOST_WAIT_S)
                if self._limits.stalled_percent() > _STALLED_PERCENT:
                    wait_s = _LEAST_WAIT_S
            except Exception as error:
                pass_on(error)  # the next reading may succeed

    def _warn(self, limit: Limit) -> None:
        """Write the report: first with the facts that are read at once, then again with the holders."""
        num_errors = self._num_errors
        shortage = Shortage(limit=limit, recent=list(self._recent))
        self._read_quick_facts(shortage)
        shortage.live = LiveMemory(why_unknown="the process ended before the search did")
        files = self._write(shortage)
        if len(files) == len(_REPORTS):
            _say(f"{head_of(shortage)}; the report is in {files[0]}")

        def search() -> None:
            found = self._main_thread.call(live_memory, _WAIT_SEARCH_S)
            shortage.live = found or LiveMemory(why_unknown="the main thread did not run Python code in time")

        shortage.note_failure("the holders", search)
        if files and num_errors == self._num_errors:  # otherwise the files now have the report on an error
            self._write(shortage)

    # parts of both reports

    def _read_quick_facts(self, shortage: Shortage) -> None:
        def read_limits() -> None:
            shortage.limits = self._limits.read()
            if (
                not self._has_warned
            ):  # otherwise memory has been near a limit, and the free bytes would mislead
                shortage.free_bytes = self._limits.free_at_peak_bytes()
                shortage.peak_bytes = self._limits.peak_bytes()

        def read_rows() -> None:
            known = Known(python=PythonMemory(), tensors=tensor_memory(with_graphs=False))
            shortage.rows = rows_of(known=known)
            shortage.trimmable_bytes = shortage.rows.trimmable_bytes

        shortage.note_failure("the limits", read_limits)
        shortage.note_failure("the reserved memory", shortage.read_reserved)
        shortage.note_failure("the rows of the process", read_rows)

    def _read_rows(self, shortage: Shortage) -> None:
        """Read the rows again with the large Python objects."""
        if len(gc.get_objects()) > _MOST_OBJECTS_FOR_ROWS:
            shortage.notes.append(
                'the Python objects were not added up, because there are too many; the row "native" has the large ones'
            )
            return
        shortage.rows = rows_of()

    def _write(self, shortage: Shortage) -> list[Path]:
        """Write the files and return those that could be written. If one could not, print a line on standard error."""
        with self._writing:
            return self._write_files(shortage)

    def _write_files(self, shortage: Shortage) -> list[Path]:
        files: list[Path] = []
        try:
            is_first = self._base is None
            base = self._base or self._new_base()
            contents = (
                report_of(shortage),
                page_of(shortage),
                json_of(shortage),
            )
            for suffix, content in zip(_REPORTS, contents, strict=True):
                file = base.with_name(base.name + suffix)
                write_whole(file, content, force=not is_first)
                files.append(file)
                self._base = base  # later reports of this process replace this one
        except (OutputError, OSError) as error:
            _say(f"{head_of(shortage)}; {not_written_text([str(file) for file in files], str(error))}")
        except Exception as error:
            _say(f"{head_of(shortage)}; the report failed: {type(error).__name__}")
        return files

    def _new_base(self) -> Path:
        """Return the path of the report without its suffix. A report of an earlier process stays."""
        place = JobPlace.here()
        # monitor("memory.jsonl") and its report share a name
        given = self._path
        if given is not None and given.suffix in _SUFFIXES:
            given = given.with_suffix("")
        name = given or default_name(place, program_name())
        path = self._folder / named_for(place, name)
        if given is not None and parent_process() is not None and "{pid}" not in given.name:
            path = path.with_name(f"{path.name}.{os.getpid()}")  # several workers may report at the same time
        base = path.with_name(f"{path.name}.oom")
        base.parent.mkdir(parents=True, exist_ok=True)
        if any(base.with_name(base.name + suffix).exists() for suffix in _REPORTS):
            base = path.with_name(f"{path.name}.{os.getpid()}.oom")
        return base

    def _forked(self) -> None:
        """Keep the hooks in a fork of the process. The fork has no thread, and writes its own reports."""
        self._pid = os.getpid()
        self._base = None
        self._writing = threading.Lock()
        self._is_reporting = False
        was_stopped = self._stopped.is_set()
        self._stopped = threading.Event()
        if was_stopped:
            self._stopped.set()
        self._main_thread = MainThread(self._stopped)


def _reserved_bytes(limits: list[Limit]) -> int:
    """Return the address space to reserve. It is a small share of a limit, because the program cannot use it."""
    spaces = [each.limit_bytes for each in limits if each.name == ADDRESS_SPACE]
    return min([_RESERVED_BYTES, *(nbytes // _PARTS_OF_LIMIT for nbytes in spaces)])


def _is_shortage(error: BaseException) -> bool:
    return isinstance(error, MemoryLimitError) or is_out_of_memory(error)


def _shown_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that its traceback shows with it: its causes, and the members of groups.

    `linked_errors` would also yield contexts that `raise ... from` hides. The program has handled those.
    """
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting.append(each.__cause__ if each.__cause__ or each.__suppress_context__ else each.__context__)
        members = getattr(each, "exceptions", ()) if type(each).__name__.endswith("ExceptionGroup") else ()
        waiting += [member for member in members if isinstance(member, BaseException)]


def _has_note_of_worker(error: BaseException) -> bool:
    """Return whether a worker process has reported on the error, and its note is in the text of the error."""
    with suppress(Exception):  # the class of the error may run any code
        text = str(error)
        return Failure.of(error).in_process and any(f"\n{note}" in text for note in NOTES)
    return False


def _notes_of(error: BaseException) -> list[str]:
    return [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]


def _say(text: str) -> None:
    with suppress(Exception):  # the program may have closed or replaced standard error
        sys.stderr.write(f"memwatch: {visible(text)}\n")
        sys.stderr.flush()


def _after_fork() -> None:
    for each in list(_alive):
        each._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def start_guard(path: Path | None = None, *, root: Path = Path("/")) -> Guard | None:
    """Write a report when memory runs out. Return the guard, or None if this process has one already.

    Args:
        path: the report without its suffixes `.oom.txt`, `.oom.json` and `.oom.html`. It may contain `{rank}`, `{pid}`
            and `{host}`. By default, it is made of the program's name and the number of the process.
        root: the folder that has `proc` and `sys`.
    """
    return None if any(each.is_active for each in _alive) else Guard(path, root)
