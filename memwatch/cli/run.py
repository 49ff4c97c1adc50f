"""Run a program and record its memory.

The program runs as `python` would run it: same arguments, output, exit code and tracebacks. The capture is
written while the program runs, so that a program that is killed leaves a readable file.

    memwatch run train.py --epochs 1
    memwatch run -o mlp.memwatch --html -m package.train
    memwatch run -c "import torch; torch.ones(1000).cumsum(0)"
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from memwatch.cli.files import make_room
from memwatch.cli.next_step import command_line, memwatch_command
from memwatch.cli.numbers import positive
from memwatch.cli.output import say
from memwatch.cli.program_arguments import PROGRAM_USAGE, add_program, chosen_program
from memwatch.cli.traceback import hide_own_frames
from memwatch.errors import MemwatchError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from memwatch.profile import Profile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    own = "[-o FILE] [-f] [-q] [--html[=PATH]] [--no-stacks] [--replay] [--limit [DEVICE=]SIZE] [--every N] [--first N]"
    parser.usage = f"memwatch run {own} {PROGRAM_USAGE}"
    parser.add_argument("-o", "--output", metavar="FILE", help="the capture; default NAME.PID.memwatch, here")
    parser.add_argument("-f", "--force", action="store_true", help="replace files that exist")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not say what to type next")
    parser.add_argument("--html", action="store_true", help="write the page too; default CAPTURE.html")
    parser.add_argument(
        "--no-stacks", action="store_true", help="record no call stacks: cheaper, without lines"
    )
    parser.add_argument("--replay", action="store_true", help="record what `memwatch plan` and `replay` need")
    parser.add_argument(
        "--limit",
        metavar="[DEVICE=]SIZE",
        action="append",
        help="stop the program at the op that lifts live bytes of a device above this, such as 2GiB or cuda:0=8GiB; "
        "may be given for several devices",
    )
    parser.add_argument(
        "--every",
        type=positive,
        metavar="N",
        help="record one step of N; of the others the allocator's curve alone. A step ends with the optimizer's",
    )
    parser.add_argument(
        "--first", type=positive, metavar="N", help="record the first N steps, whatever --every says"
    )
    add_program(parser)


def execute(options: argparse.Namespace) -> int | BaseException:
    """Run and record the program; return the exception that it raised, or 0."""
    # imported first: the program's folder comes first in sys.path later, and may hold modules of the same name
    from memwatch.profile import Sampled, profile, unbuilt_remark

    program = chosen_program(options)
    capture = Path(options.output or f"{program.name}.{os.getpid()}.memwatch")
    page = Path(options.page or capture.with_suffix(".html")).absolute() if options.html else None
    for path in (capture, page):
        if path is not None:
            make_room(path, force=options.force)
    again = memwatch_command()
    recording = profile(
        capture.absolute(),
        stacks=not options.no_stacks,
        replay=options.replay,
        limit_bytes=_limits(options.limit),
        schedule=Sampled(options.every or 0, options.first or 0) if options.every or options.first else None,
    )
    try:
        run = program.load()
    except SyntaxError as error:
        return hide_own_frames(error)
    capture.unlink(missing_ok=True)
    recording.__enter__()
    if not options.quiet:
        verbs = ["summary", *([] if page else ["report"]), *(["plan"] if options.replay else [])]
        commands = [command_line(*again, verb, capture) for verb in verbs]
        _say_at_exit(recording, capture, page, commands, "" if options.replay else unbuilt_remark())
    write_page = (
        functools.partial(_write_page, recording, page, force=options.force) if page is not None else None
    )
    return _run_inside(recording, run, write_page)


def _write_page(recording: Profile, page: Path, *, force: bool) -> None:
    if recording.page != page:  # else it was written when memory ran out
        recording.report(page, force=force)


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


def _run_inside(
    recording: Profile, run: Callable[[], None], then: Callable[[], object] | None
) -> int | BaseException:
    """Run the program and end the recording in any case; return the exception of the program, or 0."""
    process = os.getpid()
    raised: BaseException | None = None
    try:
        run()
    except BaseException as error:
        raised = hide_own_frames(error)
    if os.getpid() == process:  # a child that the program forked leaves the recording to its parent
        try:
            _close(recording, raised)
            if then is not None:
                then()
            if recording.failure is not None:
                raise recording.failure
        except MemwatchError as error:
            if raised is None:
                raise
            say(f"error: {error}")  # the process ends with the error of the program
    return 0 if raised is None else raised


def _close(recording: Profile, raised: BaseException | None) -> None:
    """End the recording, which adds to the error of an allocator what was live.

    If it could not be written to its file, as on a full disk, print its summary at least.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "memwatch: ", RuntimeWarning)  # the same is raised as an error
        recording.__exit__(None if raised is None else type(raised), raised, None)
    if recording.failure is not None:
        sys.stderr.write(recording.summary(color=False) + "\n")


def _say_at_exit(
    recording: Profile, capture: Path, page: Path | None, commands: list[str], remark: str
) -> None:
    """Print the next commands as the last lines: at exit, after a traceback and the program's own last words."""
    process = os.getpid()

    def name_next_commands() -> None:
        if os.getpid() != process or recording.failure is not None:
            return
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed or taken away by the program
            sys.stdout.flush()
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if remark:
                say(remark)
            say(f"wrote {capture}" + (f" and {page}" if page is not None and page.exists() else ""))
            say("next, type")
            sys.stderr.writelines(f"    {command}\n" for command in commands)

    atexit.register(name_next_commands)
