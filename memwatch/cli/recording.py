"""Make a recording from the options of `memwatch run`, and record the processes that the program starts.

A child is recorded from when it has torch to its end. Each rank writes its summary into its capture, so that
`memwatch merge` reads a few kilobytes from each of thousands of files.
"""

from __future__ import annotations

import argparse
import atexit
import os
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any, Final

from memwatch.children.termination import WriteBeforeTermination
from memwatch.cli.common import say
from memwatch.errors import MemwatchError
from memwatch.job import children_told, file_of_child

if TYPE_CHECKING:
    from pathlib import Path

    from memwatch.profile import Profile
    from memwatch.settings import Settings

_DEFAULTS: Final = {
    "output": None, "limit": None, "every": None, "first": None, "stacks": True, "replay": False,
    "children": False, "html": False, "live": False, "quiet": False,
}  # fmt: skip
"""The options of `memwatch run` that settings may set, each with its value where neither sets it."""


def fill_options(options: argparse.Namespace, settings: Settings) -> None:
    """Set each option of `memwatch run` that was not given to its value in the settings, or to its default."""
    for name, default in _DEFAULTS.items():
        if getattr(options, name, None) is None:
            value = settings.get("limits.live" if name == "limit" else f"run.{name}")
            setattr(options, name, default if value is None else value)


def recording_of(options: argparse.Namespace, capture: str | os.PathLike[str]) -> Profile:
    """Return the recording of this process into a file, not yet open."""
    from memwatch.profile import Sampled, profile

    return profile(
        capture,
        stacks=options.stacks,
        replay=options.replay,
        limit_bytes=_limits(options.limit),
        schedule=Sampled(options.every or 0, options.first or 0) if options.every or options.first else None,
    )


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
        MemwatchError: one limit is of every device, and there are others.
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


_LAST: Final = -100
"""Priority among the finalizers of multiprocessing: after the program's own."""
_FORK_SERVER: Final = "multiprocessing.forkserver"


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
        """Have it called at the end: a Python runs one list of functions, a fork of multiprocessing the other."""
        import multiprocessing.util  # its import arranges work at exit, which a program may not need

        atexit.register(self)
        multiprocessing.util.Finalize(None, self, exitpriority=_LAST)

    def arrange_for_termination(self) -> None:
        """Have what was recorded written before SIGTERM ends this process."""
        self._termination.arrange()

    def _write(self) -> None:
        with self._writing:  # else the end is under way: it writes
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
            if self._recording.failure is not None:
                raise self._recording.failure
        except MemwatchError as error:
            say(f"process {os.getpid()}: {error}")


class _AfterFork:
    """The object that multiprocessing calls in each forked process. multiprocessing keeps it weakly."""

    def __call__(self, _: object) -> None:
        # its main module imported torch; the finalizers are gone since
        if _ends and _ends[-1].is_of_this_process:
            _ends[-1].arrange()
        else:
            _record()


_after_fork: Final = _AfterFork()
_ends: Final[list[_End]] = []


def reach_forks() -> None:
    """Have the processes recorded that multiprocessing forks from this one."""
    import multiprocessing.util

    multiprocessing.util.register_after_fork(_after_fork, _after_fork)


def torch_was_imported(started_as: int) -> None:
    """Record this process, which has just imported torch, and the processes that it forks.

    Args:
        started_as: the number of the process that this Python began as: a fork has another.
    """
    reach_forks()
    is_server = os.getpid() == started_as and any(_FORK_SERVER in word for word in sys.orig_argv)
    if not is_server:  # that only forks, and its forks record
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
