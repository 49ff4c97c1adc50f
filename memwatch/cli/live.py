"""Show a capture while it is being written, from another terminal.

The screen shows the curve of live bytes, the memory that is alive now by category, the largest storages, and the latest
iterations with their peaks. The view only reads the file and never touches the program. It takes at most 1 % of the
processors' time. `q` quits. The screen needs the package textual: pip install "memwatch[live]". If standard output is
not a terminal, memwatch prints a line of text whenever the file has grown.

    memwatch live train.4242.memwatch
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from memwatch.cli.common import add_device, emit

if TYPE_CHECKING:
    from memwatch.live.beside import ProgramOutput
    from memwatch.live.watch import Watch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("capture", type=Path, help="a file that `memwatch run` writes")
    parser.add_argument("--program-output", type=Path, help=argparse.SUPPRESS)  # started by `run --live`
    add_device(parser)


def execute(options: argparse.Namespace) -> int:
    """Show the capture until the user quits or, as plain text, until the recording ends; return 0."""
    from memwatch.live.beside import ProgramOutput
    from memwatch.live.watch import lower_priority

    path = options.program_output
    output = None if path is None else ProgramOutput(path)
    lower_priority()
    try:
        return _watch(options, output)
    finally:
        if output is not None:
            output.print_to_the_end()


def _watch(options: argparse.Namespace, output: ProgramOutput | None) -> int:
    from memwatch.live.watch import Watch

    watch = Watch(options.capture, options.device, may_be_missing=output is not None)
    if not _is_terminal():
        return _print_lines(watch)
    _show(watch, output)
    return 0


def _is_terminal() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def _show(watch: Watch, output: ProgramOutput | None) -> None:
    from memwatch.live.beside import require_textual

    require_textual()
    watch.look()  # report a file that is not a capture before the screen is taken
    from memwatch.live.app import LiveApp

    app = LiveApp(watch) if output is None else LiveApp(
        watch, interrupt=output.interrupt, has_ended=lambda: output.has_ended
    )  # fmt: skip
    app.run()
    if app.failure is not None:
        raise app.failure


def _print_lines(watch: Watch) -> int:
    """Print a line whenever there is something new, until the recording ends."""
    from memwatch.live.watch import Pace, line_of

    pace, printed = Pace(), ""
    while True:
        view = watch.look()
        line = line_of(view)
        if line != printed:
            emit(f"{line}\n")
        if view.state.is_last:
            return 0
        printed = line
        time.sleep(pace.wait_s(watch.cpu_s))
