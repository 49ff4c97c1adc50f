"""Record a process that a program under `memwatch run --children` started, from when it has torch to its end."""

from __future__ import annotations

import argparse
import atexit
import multiprocessing.util
import os
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Final

from memwatch.children.asking import file_of_child
from memwatch.children.termination import WriteBeforeTermination
from memwatch.cli.common import say
from memwatch.cli.recording import leave_summary, recording_of
from memwatch.errors import MemwatchError
from memwatch.job import children_told

if TYPE_CHECKING:
    from pathlib import Path

    from memwatch.profile import Profile

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
