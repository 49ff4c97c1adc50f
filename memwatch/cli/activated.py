"""Record this process because MEMWATCH asked for it: what `memwatch run` does, from when torch is imported."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

from memwatch.children.termination import WriteBeforeTermination
from memwatch.cli.common import command_line, make_room, say
from memwatch.cli.recording import fill_options, leave_summary, plain_options, reach_forks, recording_of
from memwatch.errors import MemwatchError
from memwatch.job import JobPlace, ask_children, files_of_children, named_for, program_name
from memwatch.output_files import OutputError
from memwatch.settings import project_settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from memwatch.profile import Profile


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
    """Return the file of this process, whose folder exists. A file that is there already stays: ours gets a number."""
    place = JobPlace.here()
    name = output or f"{program_name()}.{'rank{rank}.' if place.is_one_of_many else ''}{{pid}}.memwatch"
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
        """Have it called at the end, and at SIGTERM."""
        atexit.register(self._at_exit)
        sys.excepthook = self._excepthook
        self._termination.arrange()

    def _write(self) -> None:
        with self._writing:  # else the end is under way: it writes
            self._recording.flush()

    def _excepthook(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """End the recording first: it adds to the error of an allocator what was live."""
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
        self._pid = 0  # once
        if self._options.quiet or self._recording.failure is not None or not self._capture.exists():
            return
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed or taken away by the program
            sys.stdout.flush()
            others = files_of_children(self._capture) if self._options.children else []
            more = f", and {len(others)} of processes that it started" if others else ""
            say(f"wrote {self._capture}{more}; next, type")
            sys.stderr.write(f"    {command_line('memwatch', 'summary', self._capture)}\n")
