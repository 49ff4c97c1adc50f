"""Print the memory of a running process in rows: libraries, malloc, stacks, files, shared memory.

Everything comes from /proc, so the program needs no preparation and does not notice. /proc doesn't distinguish tensors
from other memory of malloc: call `memwatch.process_memory()` in the program for these rows. The processes that it
started, such as the workers of a DataLoader, are listed below. RSS is all of its memory in RAM, PSS is RSS with shared
memory divided among its users, and USS is the memory that no other process shares. Without a PID, `memwatch ps` lists
the running Python processes, largest first. With `--seconds`, memwatch reads twice and shows the growth between the
readings, of the rows of a process or of each process's USS.

    memwatch ps 4242
    memwatch ps --seconds 60 4242
    memwatch ps --json 4242
"""

from __future__ import annotations

import argparse
import time
from typing import Final

from memwatch.cli.common import add_json, emit, emit_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument(
        "pid", nargs="?", help="the number of a process; by default all Python processes are listed"
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        metavar="S",
        help="read again after so many seconds, and show the growth",
    )
    add_json(parser)


def execute(options: argparse.Namespace) -> int:
    """Print the rows; return 0."""
    from memwatch.errors import OptionError
    from memwatch.monitor import text
    from memwatch.monitor.rows import python_processes, rows_of

    seconds = options.seconds
    earlier: text.Earlier | None = None
    if options.pid is None:
        processes = python_processes()
        if seconds is not None:
            begun_s = _wait(seconds)
            before = {process.pid: process.uss_bytes for process in processes}
            processes = python_processes()
            earlier = text.Earlier(round(time.monotonic() - begun_s, 3), {}, before)
        if options.json:
            emit_json(text.record_of_processes(processes, earlier))
        else:
            emit(text.of_processes(processes, earlier))
        return 0
    if not options.pid.isdecimal() or not int(options.pid):
        raise OptionError(f"{options.pid!r} is no process; give its number, as `memwatch ps` lists it")
    found = rows_of(int(options.pid))
    if seconds is not None:
        begun_s = _wait(seconds)
        before = {child.pid: child.uss_bytes for child in found.children}
        rows = {row.row: row.nbytes for row in found.rows}
        found = rows_of(int(options.pid))
        earlier = text.Earlier(round(time.monotonic() - begun_s, 3), rows, before)
    if options.json:
        emit_json(text.record_of(found, earlier))
    else:
        emit(text.of_process(found, earlier=earlier))
    return 0


def _wait(seconds: float) -> float:
    """Wait, and return when the wait began."""
    begun_s = time.monotonic()
    time.sleep(seconds)
    return begun_s


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _MOST_SECONDS:  # nan too
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


_MOST_SECONDS: Final = 1e6
