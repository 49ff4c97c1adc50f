"""Run a program and record its memory.

The program runs as `python` would run it: same arguments, output, exit code and tracebacks. memwatch writes the
capture while the program runs, so a killed program leaves a readable file. The table `[tool.memwatch.run]` of
pyproject.toml sets defaults.

    memwatch run train.py --epochs 1
    memwatch run -o mlp.memwatch --html -m package.train
    memwatch run -c "import torch; torch.ones(1000).cumsum(0)"
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from memwatch.children.termination import WriteBeforeTermination
from memwatch.cli.common import (
    ALL_TABLES_ROWS,
    command_line,
    make_room,
    memwatch_command,
    positive,
    say,
    size_of_device,
)
from memwatch.cli.program import (
    PROGRAM_USAGE,
    add_program,
    chosen_program,
    hide_own_frames,
    say_misplaced_option,
)
from memwatch.cli.recording import (
    fill_options,
    leave_summary,
    plain_options,
    recording_of,
    say_limits_without_device,
)
from memwatch.errors import CaptureError, MemwatchError
from memwatch.job import (
    JobPlace,
    ask_children,
    default_name,
    files_of_children,
    named_for,
    require_known_fields,
)
from memwatch.settings import project_settings
from memwatch.words.processes import GAVE_WAY_KIND

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.profile import Profile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    switch = argparse.BooleanOptionalAction  # the default, None, means that pyproject.toml decides
    own = (
        "[-o FILE] [-f] [-q] [--html[=PATH]] [--no-stacks] [--replay] [--children] [--limit [DEVICE=]SIZE] "
        "[--every N] [--first N] [--live]"
    )
    parser.usage = f"memwatch run {own} {PROGRAM_USAGE}"
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the capture, which may hold {rank}, {pid} and {host}; default NAME.PID.memwatch, here",
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace files that exist")
    parser.add_argument("-q", "--quiet", action=switch, help="do not print the next command")
    parser.add_argument(
        "--html",
        action=switch,
        help="write the page too, to PATH with --html=PATH; default CAPTURE.html",
    )
    parser.add_argument(
        "--stacks", action=switch, help="record call stacks (the default), or none: faster, but without lines"
    )
    parser.add_argument(
        "--replay", action=switch, help="record the data that `memwatch plan` and `replay` need"
    )
    parser.add_argument(
        "--children",
        action=switch,
        help="also record the worker processes and Python programs that it starts, each in a file beside this one",
    )
    parser.add_argument(
        "--limit",
        type=size_of_device,
        metavar="[DEVICE=]SIZE",
        action="append",
        help="stop the program at the op that raises live bytes of a device above SIZE, such as 2GiB or cuda:0=8GiB; "
        "repeat it for several devices",
    )
    parser.add_argument(
        "--every",
        type=positive,
        metavar="N",
        help="record the ops of one step in N, only live bytes of the others. A step ends with optimizer.step()",
    )
    parser.add_argument(
        "--first", type=positive, metavar="N", help="record the first N steps, whatever --every says"
    )
    parser.add_argument(
        "--live",
        action=switch,
        help="show the memory on the terminal while the program runs; the program's own output comes afterwards",
    )
    add_program(parser)


def execute(options: argparse.Namespace) -> int | BaseException:
    """Run and record the program; return the exception that it raised, or 0."""
    # imported first: the program's folder comes first in sys.path later, and may hold modules of the same name
    from memwatch.live.beside import live_view

    program, place, process = chosen_program(options), JobPlace.here(), os.getpid()
    fill_options(options, project_settings())
    for given in (options.output, options.page):
        if given:
            require_known_fields(given)
    capture = named_for(place, options.output or f"{default_name(place, program.name)}.memwatch")
    page: Path | None = None
    if options.html:  # without a path, the page is beside the capture and has its name
        page = (named_for(place, options.page) if options.page else capture.with_suffix(".html")).absolute()
    make_room(capture=capture, page=page, inputs=program.files(), force=options.force)
    again = memwatch_command()
    recording = recording_of(options, capture.absolute())
    recording.replaces_file = options.force
    if options.children:
        from memwatch.cli.recording import reach_forks

        ask_children(capture, plain_options(options))
        reach_forks()
    try:
        run = program.load()
    except SyntaxError as error:
        return hide_own_frames(error)
    if options.live:  # the viewer starts first, and would show the recording that is about to be replaced
        capture.unlink(missing_ok=True)
    with live_view(capture.absolute(), place) if options.live else contextlib.nullcontext():
        recording.__enter__()
        if not options.quiet:
            _name_next(
                options,
                place,
                recording,
                _Wrote(capture, page, command_line(*again, "report", capture)),
                again,
            )
        write_page = (
            functools.partial(_write_page, recording, page, force=options.force) if page is not None else None
        )
        ended = _run_inside(recording, run, capture.absolute(), write_page)
    if os.getpid() == process:  # a child that the program forked comes here too
        say_limits_without_device(options.limit)
        say_misplaced_option(options, ended)
    return ended


def _name_next(
    options: argparse.Namespace, place: JobPlace, recording: Profile, wrote: _Wrote, again: list[str]
) -> None:
    """Print the file that a rank writes, and print the next commands at exit."""
    from memwatch.profile import unbuilt_remark

    capture = wrote.capture
    if options.output and place.is_one_of_many and capture != Path(options.output):
        say(f"rank {place.rank} of {place.world_size} writes {capture}")
    verbs = ["summary", *([] if wrote.page else ["report"]), *(["plan"] if options.replay else [])]
    commands = [command_line(*again, verb, capture) for verb in verbs]
    if place.is_one_of_many and f".rank{place.rank}." in capture.name:
        commands = [] if place.rank else [*commands, _merge_command(again, capture, f".rank{place.rank}.")]
    remark = "" if options.replay else unbuilt_remark()
    merge_children = _merge_command(again, capture) if options.children else ""
    _say_at_exit(recording, wrote, commands, merge_children, remark)


def _write_page(recording: Profile, page: Path, *, force: bool) -> None:
    if recording.page != page:  # otherwise the page was written already, when memory ran out
        recording.report(page, force=force)


def _run_inside(
    recording: Profile, run: Callable[[], None], capture: Path, then: Callable[[], object] | None
) -> int | BaseException:
    """Run the program and end the recording in any case; return the exception of the program, or 0."""
    process = os.getpid()
    raised: BaseException | None = None
    writing = threading.Lock()

    def flush() -> None:
        with writing:  # waits while the recording is being closed, which writes everything
            recording.flush()

    termination = WriteBeforeTermination(flush)
    termination.arrange()
    try:
        run()
    except BaseException as error:
        raised = hide_own_frames(error)
    if os.getpid() == process:  # a child that the program forked leaves the recording to its parent
        try:
            with writing:
                _close(recording, raised)
                leave_summary(recording, capture)
            if then is not None:
                then()
            if recording.failure is not None:
                raise recording.failure
        except MemwatchError as error:
            if raised is None:
                raise
            say(f"error: {error}")  # the process ends with the error of the program
        finally:
            termination.restore()
    return 0 if raised is None else raised


def _close(recording: Profile, raised: BaseException | None) -> None:
    """End the recording. If memory ran out, this adds the live memory to the error.

    If it could not be written to its file, because the disk is full or another program has changed the file, print its
    summary at least.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "memwatch: ", RuntimeWarning)  # the same is raised as an error
        recording.__exit__(None if raised is None else type(raised), raised, None)
    if recording.failure is not None:
        # another program destroyed the file: the failure is raised next
        with contextlib.suppress(CaptureError):
            # with all tables, because there is no capture that could show them later
            sys.stderr.write(recording.summary(color=False, rows=ALL_TABLES_ROWS, following="") + "\n")


def _merge_command(again: list[str], capture: Path, rank: str = "") -> str:
    """Return the command that merges this capture with the captures of the other ranks or the children."""
    stem = capture.name.partition(rank)[0] + ".rank" if rank else capture.stem
    return f"{command_line(*again, 'merge', capture.with_name(stem))}*{capture.suffix}"


class _Wrote(NamedTuple):
    """The files of a run."""

    capture: Path
    page: Path | None
    report_command: str

    def text(self, children: int) -> str:
        """Return the files that were written, and how many files the children wrote."""
        text = f"wrote {self.capture}"
        if self.page is not None and self.page.exists():
            text += f" and {self.page}"
        return text + (f", and {children} of processes that it started" if children else "")


def _say_at_exit(
    recording: Profile, wrote: _Wrote, commands: list[str], merge_children: str, remark: str
) -> None:
    """Print the next commands as the last lines: at exit, after a traceback and the program's own last words."""
    process = os.getpid()

    def name_next_commands() -> None:
        if os.getpid() != process or recording.failure is not None:
            return
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed or taken away by the program
            sys.stdout.flush()
        with contextlib.suppress(OSError, ValueError, AttributeError):
            for each in filter(
                None, (remark, *recording.remarks("children"), *recording.remarks(GAVE_WAY_KIND))
            ):
                say(each)
            children = len(files_of_children(wrote.capture)) if merge_children else 0
            say(wrote.text(children))
            written = [wrote.report_command] if recording.page is not None else []  # the page exists already
            following = [command for command in commands if command not in written]
            following += [merge_children] if children else []
            if following:
                say("next, type")
                sys.stderr.writelines(f"    {command}\n" for command in following)

    atexit.register(name_next_commands)
