"""Record as `memwatch run` does: its options, the processes that the program starts, and programs that MEMWATCH names.

A child is recorded from when it has torch to its end. Each rank writes its summary into its capture, so that
`memwatch merge` reads a few kilobytes from each of thousands of files.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any, Final

from memwatch.children.termination import WriteBeforeTermination
from memwatch.cli.common import command_line, make_room, memwatch_command, say
from memwatch.errors import MemwatchError
from memwatch.job import (
    JobPlace,
    ask_children,
    children_told,
    default_name,
    file_of_child,
    files_of_children,
    named_for,
    program_name,
    require_known_fields,
)
from memwatch.output_files import OutputError
from memwatch.settings import project_settings
from memwatch.words.processes import GAVE_WAY_KIND

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from memwatch.profile import Profile
    from memwatch.settings import Settings

_DEFAULTS: Final = {
    "output": None, "limit": None, "every": None, "first": None, "stacks": True, "replay": False,
    "children": False, "html": False, "live": False, "quiet": False,
}  # fmt: skip
"""The options of `memwatch run` that settings may set, each with its value where neither sets it."""
_LAST: Final = -100
"""Priority among the finalizers of multiprocessing: after the program's own."""
_FORK_SERVER: Final = "multiprocessing.forkserver"
_ends: Final[list[_End]] = []


def fill_options(options: argparse.Namespace, settings: Settings) -> None:
    """Set each option of `memwatch run` that was not given to its value in the settings, or to its default."""
    for name, default in _DEFAULTS.items():
        if getattr(options, name, None) is None:
            value = settings.get("limits.live" if name == "limit" else f"run.{name}")
            setattr(options, name, default if value is None else value)


def recording_of(options: argparse.Namespace, capture: str | os.PathLike[str]) -> Profile:
    """Return a recording of this process that writes to `capture`; the caller enters it.

    It ends when the program opens a `profile()` block.
    """
    from memwatch.profile import Sampled, profile, read_limits

    limits = _limits(options.limit)
    read_limits(limits, "--limit")  # its errors name the option that was typed
    recording = profile(
        capture,
        stacks=options.stacks,
        replay=options.replay,
        limit_bytes=limits,
        schedule=Sampled(options.every or 0, options.first or 0) if options.every or options.first else None,
    )
    recording.gives_way = True
    return recording


def plain_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options as JSON values, so that another process can make its own recording."""
    plain = (type(None), bool, int, float, str)
    return {
        name: value
        for name, value in vars(options).items()
        if isinstance(value, plain)
        or (isinstance(value, list) and all(isinstance(each, plain) for each in value))
    }


def _limits(given: list[str] | None) -> str | dict[str, str] | None:
    """Return the limit of every device, or limits by device.

    Raises:
        MemwatchError: there are several limits, and one of them names no device.
    """
    if given is None:
        return None
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    if not all("=" in limit for limit in given):
        raise MemwatchError(
            "give --limit one size for every device, or a DEVICE=SIZE for each, as cuda:0=8GiB"
        )
    return dict(limit.split("=", 1) for limit in given)


def say_limits_without_device(given: list[str] | None) -> None:
    """Print the limits that could not stop the program, because this machine does not have their devices.

    It is printed at the end: memwatch does not know the devices before the program initialises the accelerator.
    """
    from memwatch.devices.adapters import has_device

    for limit in given or ():
        device = limit.rpartition("=")[0]
        if device and not has_device(device):
            say(f"this machine has no device {device}, so --limit {limit} limited nothing")


def leave_summary(recording: Profile, capture: Path) -> None:
    """Write the summary of a finished recording into its file, if this process is one of many ranks.

    Raises:
        CaptureError: the file cannot be read or written.
    """
    if recording.failure is not None:
        return
    from memwatch.capture.file import add_summary, read_head
    from memwatch.ranks.summary import summarise

    meta = read_head(capture).meta
    if meta.get("rank") is not None and meta.get("world_size", 1) > 1:
        add_summary(capture, summarise(recording.capture))


class _End:
    """Ends a recording once, in the process that began it, whichever way that process ends."""

    def __init__(self, recording: Profile, capture: Path) -> None:
        self._recording, self._capture = recording, capture
        self._pid = os.getpid()
        self._writing = threading.Lock()
        self._termination = WriteBeforeTermination(self._write)

    @property
    def is_of_this_process(self) -> bool:
        """Whether the recording began in this process and not in its parent."""
        return self._pid == os.getpid()

    def arrange(self) -> None:
        """Register the call for the end of the process.

        Python runs the functions of `atexit`. A process that multiprocessing forked runs only its finalizers.
        """
        import multiprocessing.util  # imported late, because the import itself registers work at exit

        atexit.register(self)
        multiprocessing.util.Finalize(None, self, exitpriority=_LAST)

    def arrange_for_termination(self) -> None:
        """Write what was recorded before SIGTERM or SIGHUP ends this process."""
        self._termination.arrange()

    def _write(self) -> None:
        with self._writing:  # waits while the recording is being closed, which writes everything
            self._recording.flush()

    def __call__(self) -> None:
        """End the recording, unless that was done, or another process began it."""
        if not self.is_of_this_process:
            return
        self._pid = 0
        try:
            with self._writing:
                self._end()
        finally:
            self._termination.restore()

    def _end(self) -> None:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "memwatch: ", RuntimeWarning)
                self._recording.__exit__(None, None, None)
            leave_summary(self._recording, self._capture)
            for remark in self._recording.remarks(GAVE_WAY_KIND):
                say(remark)
            if self._recording.failure is not None:
                raise self._recording.failure
        except MemwatchError as error:
            say(f"process {os.getpid()}: {error}")


class _AfterFork:
    """The object that multiprocessing calls in each forked process. multiprocessing keeps it weakly."""

    def __call__(self, _: object) -> None:
        # A spawned process imports its main module first. If that imported torch, the process records already, but
        # multiprocessing has removed the finalizers since.
        if _ends and _ends[-1].is_of_this_process:
            _ends[-1].arrange()
        else:
            _record()


_after_fork: Final = _AfterFork()


def reach_forks() -> None:
    """Record the processes that multiprocessing forks from this one."""
    import multiprocessing.util

    multiprocessing.util.register_after_fork(_after_fork, _after_fork)


def torch_was_imported(started_as: int) -> None:
    """Record this process, which has just imported torch, and the processes that it forks.

    Args:
        started_as: the number of the process that this Python began as: a fork has another.
    """
    reach_forks()
    is_server = os.getpid() == started_as and any(_FORK_SERVER in word for word in sys.orig_argv)
    if not is_server:  # a fork server runs no ops; the processes that it forks are recorded
        _record()


def _record() -> None:
    """Begin, and arrange for the end. A process that cannot be recorded runs on as it would have."""
    if threading.current_thread() is not threading.main_thread():
        return
    try:
        capture = file_of_child()
        recording = recording_of(argparse.Namespace(**children_told()["options"]), capture)
        recording.__enter__()
    except (MemwatchError, OSError, KeyError, AttributeError) as error:
        say(f"process {os.getpid()} is not recorded: {error}")
        return
    _ends.append(_End(recording, capture))
    _ends[-1].arrange()
    _ends[-1].arrange_for_termination()


def record_this_process(given: Mapping[str, Any]) -> None:
    """Begin to record, and arrange for the end. A process that cannot be recorded runs on as it would have.

    Args:
        given: the options of `memwatch run` that MEMWATCH sets, by name. pyproject.toml may set the others.
    """
    options = argparse.Namespace(**given)
    if threading.current_thread() is not threading.main_thread():
        say(f"process {os.getpid()} is not recorded: it imports torch first in another thread")
        return
    try:
        fill_options(options, project_settings())
        capture = _file(options.output)
        recording = recording_of(options, capture)
        recording.__enter__()
    except (MemwatchError, OSError) as error:
        say(f"process {os.getpid()} is not recorded: {error}")
        return
    if options.children:
        ask_children(capture, plain_options(options))
        reach_forks()
    _Run(recording, capture, options).arrange()


def _file(output: str | None) -> Path:
    """Return the file of this process, and make its folder.

    If a file with this name exists, it stays, and the name of the new file gets the number of this process.
    """
    place = JobPlace.here()
    if output:
        require_known_fields(output)
    name = output or f"{default_name(place, program_name())}.memwatch"
    path = named_for(place, name).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        make_room(path, force=False)
    except OutputError:
        path = path.with_name(f"{path.stem}.{os.getpid()}{path.suffix}")
        make_room(path, force=False)
    return path


class _Run:
    """Ends the recording once: at the exception that ends the program, else at its exit."""

    def __init__(self, recording: Profile, capture: Path, options: argparse.Namespace) -> None:
        self._recording, self._capture, self._options = recording, capture, options
        self._pid: int | None = os.getpid()
        self._writing = threading.Lock()
        self._termination = WriteBeforeTermination(self._write)
        self._previous = sys.excepthook

    def arrange(self) -> None:
        """Register the end of the recording at an exception, at exit, and at SIGTERM or SIGHUP."""
        atexit.register(self._at_exit)
        sys.excepthook = self._excepthook
        self._termination.arrange()

    def _write(self) -> None:
        with self._writing:  # waits while the recording is being closed, which writes everything
            self._recording.flush()

    def _excepthook(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """End the recording before the error is printed: if memory ran out, this adds the live memory to the error."""
        self._end(error)
        self._previous(kind, error, trace)

    def _at_exit(self) -> None:
        ends_now = self._pid == os.getpid()
        self._end(None)
        if ends_now or self._pid is None:
            self._say_what_was_written()

    def _end(self, error: BaseException | None) -> None:
        if self._pid != os.getpid():  # it was done, or another process began it
            return
        self._pid = None
        has_ops = self._recording.num_ops_started > 0
        try:
            with self._writing, warnings.catch_warnings():
                warnings.filterwarnings("ignore", "memwatch: ", RuntimeWarning)
                self._recording.__exit__(None if error is None else type(error), error, None)
            if not has_ops:  # a launcher, such as torchrun, or a tool that only imports torch
                self._capture.unlink(missing_ok=True)
                return
            leave_summary(self._recording, self._capture)
            if self._options.html:
                self._recording.report(self._capture.with_suffix(".html"))
            if self._recording.failure is not None:
                raise self._recording.failure
        except (MemwatchError, OSError) as problem:
            say(f"process {os.getpid()}: {problem}")
        finally:
            self._termination.restore()

    def _say_what_was_written(self) -> None:
        self._pid = 0  # so that a second call prints nothing
        if self._options.quiet or self._recording.failure is not None or not self._capture.exists():
            return
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed or taken away by the program
            sys.stdout.flush()
            others = files_of_children(self._capture) if self._options.children else []
            more = f", and {len(others)} of processes that it started" if others else ""
            say(f"wrote {self._capture}{more}; next, type")
            sys.stderr.write(f"    {command_line(*memwatch_command(), 'summary', self._capture)}\n")
