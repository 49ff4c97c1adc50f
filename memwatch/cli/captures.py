"""Short verbs of captures. Each is a class: its docstring is the help of the verb."""

from __future__ import annotations

import argparse
from pathlib import Path

from memwatch.capture.derived import DERIVED_BY_NAME
from memwatch.cli.common import (
    add_device,
    add_json,
    command_line,
    emit,
    emit_json,
    emit_path,
    make_room,
    memwatch_command,
    positive,
    read,
    say,
)
from memwatch.errors import MemwatchError
from memwatch.progress import working


class Report:
    """Write the page of a capture: one HTML file that opens offline.

    memwatch prints the path of the page.

        memwatch report train.4242.memwatch
        memwatch report -o peak.html --no-source train.4242.memwatch
    """

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb."""
        parser.add_argument("capture", type=Path, help="a file that `memwatch run` wrote")
        parser.add_argument(
            "-o",
            "--output",
            type=Path,
            metavar="PATH",
            help="the page; default the capture's name with .html",
        )
        parser.add_argument("-f", "--force", action="store_true", help="replace the page if it exists")
        parser.add_argument(
            "--no-source", action="store_true", help="leave out paths, source lines and the command line"
        )
        add_device(parser)

    @staticmethod
    def execute(options: argparse.Namespace) -> int:
        """Write the page and print its path; return 0."""
        page = options.output or options.capture.with_suffix(".html")
        make_room(page, inputs=[options.capture], force=options.force)
        reading = read(options.capture, options.device)
        reading.report(page, source=not options.no_source, force=options.force)
        emit_path(page)
        return 0


class Stats:
    """Print totals, the sizes of allocations, and the lines and ops that allocated most.

    `memwatch summary` is about the peak. These figures are about the whole recording, with memory that was freed before
    or after the peak.

        memwatch stats train.4242.memwatch
        memwatch stats --json train.4242.memwatch
    """

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb."""
        parser.add_argument("capture", type=Path, help="a file that `memwatch run` wrote")
        add_json(parser)
        parser.add_argument(
            "-n", "--rows", type=positive, default=5, help="lines and ops to list (default %(default)s)"
        )
        add_device(parser)

    @staticmethod
    def execute(options: argparse.Namespace) -> int:
        """Print the figures; return 0."""
        from memwatch.report.stats import format_stats, stats

        with working("memwatch stats"):
            figures = stats(read(options.capture, options.device), top=options.rows)
        if options.json:
            emit_json(figures)
        else:
            emit(format_stats(figures))
        return 0


class Tree:
    """Print the peak as a tree: category, module, line.

    The output is plain text that needs no terminal.

        memwatch tree train.4242.memwatch
        memwatch tree --by module,op_name train.4242.memwatch
    """

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb."""
        parser.add_argument("capture", type=Path, help="a file that `memwatch run` wrote")
        parser.add_argument(
            "-n", "--rows", type=positive, default=10, help="most branches at a node (default %(default)s)"
        )
        parser.add_argument(
            "--by", type=_levels, metavar="COLUMNS", help="columns of `at_peak`, default category,module,line"
        )
        add_json(parser)
        add_device(parser)

    @staticmethod
    def execute(options: argparse.Namespace) -> int:
        """Print the tree; return 0."""
        from memwatch.report.records import tree_record
        from memwatch.report.tree import LEVELS, tree

        reading, levels = read(options.capture, options.device), options.by or LEVELS
        if options.json:
            emit_json(tree_record(reading, levels))
        else:
            emit(tree(reading, rows=options.rows, levels=levels))
        return 0


def _levels(text: str) -> list[str]:
    known = [column.name for column in DERIVED_BY_NAME["at_peak"].columns if column.kind == "text"]
    levels = text.split(",")
    if not set(levels) <= set(known):
        raise argparse.ArgumentTypeError(f"{text!r} is unknown; choose from {', '.join(known)}")
    return levels


class Merge:
    """Put the captures of many processes side by side: ranks of a job, and processes that they started.

    memwatch prints a summary. With -o it also writes a page, and beside it the page of the rank with the highest peak.
    If a rank was killed, its figures cover the part that it recorded. Missing ranks are listed.

        memwatch merge train.rank*.memwatch
        memwatch merge train.rank*.memwatch -o ranks.html
    """

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb."""
        parser.add_argument("captures", type=Path, nargs="+", help="files that `memwatch run` wrote")
        parser.add_argument("-o", "--output", type=Path, metavar="PATH", help="write this page too")
        parser.add_argument("-f", "--force", action="store_true", help="replace pages that exist")
        parser.add_argument(
            "-n", "--rows", type=positive, default=8, help="most rows in each table (default %(default)s)"
        )
        parser.add_argument(
            "--no-source", action="store_true", help="leave paths and source lines out of the page"
        )

    @staticmethod
    def execute(options: argparse.Namespace) -> int:
        """Print the summary and write the page; return 0."""
        make_room(options.output, inputs=options.captures, force=options.force)
        from memwatch.ranks import merge

        ranks = merge(options.captures)
        emit(ranks.summary(rows=options.rows))
        if options.output is not None:
            page = ranks.report(options.output, source=not options.no_source, force=options.force)
            say(f"wrote {page}")
        return 0


class Replay:
    """Execute a plan on made-up inputs and measure its peak.

    A capture holds the shapes of a program's inputs, but not their values, so memwatch makes up values. If the measured
    peak is above the plan's, the exit code is 1.

        memwatch plan train.4242.memwatch --budget 60% -o train.plan
        memwatch replay train.4242.memwatch --plan train.plan
    """

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb."""
        parser.add_argument("capture", type=Path, help="a file that `memwatch run --replay` wrote")
        parser.add_argument(
            "--plan", type=Path, required=True, metavar="FILE", help="a plan that `memwatch plan -o` wrote"
        )
        add_json(parser)
        add_device(parser)

    @staticmethod
    def execute(options: argparse.Namespace) -> int:
        """Print the result of the replay; return 1 if the peak is above the plan's."""
        from memwatch.planner.plan import load_plan
        from memwatch.replay.api import replay
        from memwatch.report import plan_summary
        from memwatch.report.records import plan_record

        plan = load_plan(options.plan)
        reading = read(options.capture, options.device)
        result = replay(plan, reading)
        if options.json:
            emit_json(plan_record(plan, result))
        else:
            emit(plan_summary(plan, result, reading=reading))
        return int(result.peak_increase_bytes > result.planned_bytes)


class Import:
    """Make a capture of a memory snapshot that torch wrote (`_dump_snapshot()`).

    memwatch runs no code from the file. Its reader accepts only containers, numbers and text. A snapshot has no ops,
    modules, categories or holders, so the capture marks them as not recorded.

        memwatch import dump_snapshot.pickle
        memwatch import --device xpu dump_snapshot.pickle -o run.memwatch
    """

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb."""
        parser.add_argument("snapshot", type=Path, help="a file that torch wrote")
        parser.add_argument(
            "-o",
            "--output",
            type=Path,
            metavar="FILE",
            help="the capture; default the snapshot's name with .memwatch",
        )
        parser.add_argument("-f", "--force", action="store_true", help="replace the capture if it exists")
        parser.add_argument(
            "--device",
            metavar="TYPE",
            type=_device_type,
            default="cuda",
            help="the type of its devices, which the file does not say (default %(default)s)",
        )

    @staticmethod
    def execute(options: argparse.Namespace) -> int:
        """Write the capture and print its path; return 0."""
        from memwatch.capture import save
        from memwatch.memory_snapshot import read_snapshot

        target = options.output or options.snapshot.with_suffix(".memwatch")
        if target == options.snapshot:
            raise MemwatchError(
                f"{target} is the input and cannot be the output too; name another output with -o"
            )
        make_room(target, inputs=[options.snapshot], force=options.force)
        save(read_snapshot(options.snapshot, device=options.device), target, force=options.force)
        emit_path(target)
        say(f"next, type {command_line(*memwatch_command(), 'summary', target)}")
        return 0


def _device_type(text: str) -> str:
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not a type of device; give a type such as cuda or xpu")
    return text
