"""Print the memory of a running process in rows: libraries, malloc, stacks, files, shared memory.

Everything comes from /proc, so the program needs no preparation and does not notice. /proc doesn't distinguish tensors
from other memory of malloc: call `memwatch.process_memory()` in the program for these rows. The processes that it
started, such as the workers of a DataLoader, are listed below. RSS is all of its memory in RAM, PSS is RSS with shared
memory divided among its users, and USS is the memory that no other process shares. Without a PID, `memwatch ps` lists
the running Python processes, largest first.

    memwatch ps 4242
    memwatch ps --json 4242
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.cli.common import add_json, emit, emit_json

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument(
        "pid", nargs="?", help="the number of a process; by default all Python processes are listed"
    )
    add_json(parser)


def execute(options: argparse.Namespace) -> int:
    """Print the rows; return 0."""
    from memwatch.errors import OptionError
    from memwatch.monitor import text
    from memwatch.monitor.rows import python_processes, rows_of

    if options.pid is None:
        processes = python_processes()
        if options.json:
            emit_json([vars(process) for process in processes])
        else:
            emit(text.of_processes(processes))
        return 0
    if not options.pid.isdecimal() or not int(options.pid):
        raise OptionError(f"{options.pid!r} is no process; give its number, as `memwatch ps` lists it")
    found = rows_of(int(options.pid))
    if options.json:
        emit_json(text.record_of(found))
    else:
        emit(text.of_process(found))
    return 0
