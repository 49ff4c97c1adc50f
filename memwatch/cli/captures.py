"""Verbs of captures. Each is a class: its docstring is the help of the verb."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from memwatch.capture.derived import DERIVED_BY_NAME
from memwatch.cli.common import (
    ALL_TABLES_ROWS,
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
    share,
)
from memwatch.device_names import is_host
from memwatch.errors import MemwatchError
from memwatch.output_files import OutputError, write_whole
from memwatch.progress import working
from memwatch.settings import project_settings
from memwatch.sizes import format_bytes, format_change
from memwatch.words.processes import PROGRAM_FAILED, counted, listed
from memwatch.words.ranks import UNREAD
from memwatch.words.storages import file_remarks, moved_peak, short_site
from memwatch.words.summary import FIT_COMMAND, LEAKS_COMMAND, NEXT_COMMAND

if TYPE_CHECKING:
    from memwatch.analysis.compare import Comparison
    from memwatch.live.beside import ProgramOutput
    from memwatch.live.watch import Watch
    from memwatch.reading import Reading

_LEAST_FALL_RATIO: Final = 0.1
"""A change that lowers the peak by less is not worth the minutes that `memwatch fit` takes: a guess."""
MEMORY_VIZ = "memory_viz"
PARQUET = "parquet"
PPROF = "pprof"
CHROME = "chrome"
FORMATS = ("csv", "json", "speedscope", CHROME, PPROF, MEMORY_VIZ, PARQUET)


class Summary:
    """Print the peak by category, storage, module, line and holder.

    The first lines name the peak and its main parts. The findings and changes at the end would lower it.

        memwatch summary train.4242.memwatch
        memwatch summary --json train.4242.memwatch
    """

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb."""
        parser.add_argument("capture", type=Path, help="a file that `memwatch run` wrote")
        parser.add_argument(
            "-n",
            "--rows",
            type=positive,
            help="most rows in each table (default: what fits 50 lines, 8 at most)",
        )
        add_json(parser)
        add_device(parser)

    @staticmethod
    def execute(options: argparse.Namespace) -> int:
        """Print the summary; return 0."""
        from memwatch.report.records import summary_record

        with working("memwatch summary"):
            reading = read(options.capture, options.device)
            made = (
                summary_record(reading, **_rows(options)) if options.json else _summary_text(reading, options)
            )
        if isinstance(made, str):
            emit(made)
        else:
            emit_json(made)
        return 0


def _rows(options: argparse.Namespace) -> dict[str, int]:
    return {} if options.rows is None else {"rows": options.rows}


def _summary_text(reading: Reading, options: argparse.Namespace) -> str:
    """Return the summary, with the command that shows the most about it last."""
    verb = "plan" if reading.capture.rows("arguments") else "report"
    device = () if options.device is None else ("--device", options.device)
    command = command_line(*memwatch_command(), verb, *device, options.capture)
    show_all = command_line(
        *memwatch_command(), "summary", "-n", str(ALL_TABLES_ROWS), *device, options.capture
    )
    following = "\n".join([NEXT_COMMAND.format(command=command), *_to_run_next(reading)])
    return reading.summary(following=following, show_all=show_all, **_rows(options))


def _to_run_next(reading: Reading) -> list[str]:
    """Return a line with the command that helps next with the recorded script, if one would."""
    argv = [str(word) for word in reading.meta.get("argv", ())]
    if not argv or not argv[0].endswith(".py"):
        return []
    from memwatch.report.facts import growing

    if growing(reading) is not None:
        return [LEAKS_COMMAND.format(command=command_line(*memwatch_command(), "leaks", *argv))]
    from memwatch.kinds.fit import Kind

    measured = {kind.value for kind in Kind}  # `fit` does not split the batch or take another optimizer
    ways = reading.ways
    is_measured = [
        is_of_first_model and measured.issuperset(kind.split(" + "))
        for kind, is_of_first_model in zip(ways["kind"], ways.attrs["of_first_model"], strict=True)
    ]
    lowest_bytes = int(ways["peak_bytes"][is_measured].min()) if any(is_measured) else reading.peak_bytes
    if not lowest_bytes or lowest_bytes > (1 - _LEAST_FALL_RATIO) * reading.peak_bytes:
        return []
    limit = _rounded_up(lowest_bytes)
    return [FIT_COMMAND.format(command=command_line(*memwatch_command(), "fit", "--limit", limit, *argv))]


def _rounded_up(nbytes: int) -> str:
    """Return a size that is short to type. Rounding adds at most a tenth, so it stays below the recorded peak."""
    if nbytes >= 10 * 2**20:
        return f"{math.ceil(nbytes / 2**20)}MiB"
    if nbytes >= 2**20:
        return f"{math.ceil(nbytes / 2**20 * 10) / 10}MiB"
    return f"{math.ceil(nbytes / 2**10)}KiB" if nbytes >= 10 * 2**10 else f"{nbytes}B"


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
        try:
            make_room(page=page, inputs=[options.capture], force=options.force)
        except OutputError:
            read(options.capture, options.device)  # if both are wrong, report the capture first
            raise
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
            "-n",
            "--rows",
            type=positive,
            default=10,
            help="most branches at a node of the text (default %(default)s)",
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
    If a rank was killed, its figures cover the part that it recorded. Missing ranks are listed. The exit code is 1 if a
    file cannot be read.

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
        """Print the summary and write the page; return 1 if the figures leave out a capture, else 0."""
        make_room(page=options.output, inputs=options.captures, force=options.force)
        from memwatch.ranks import merge

        ranks = merge(options.captures)
        emit(ranks.summary(rows=options.rows))
        if options.output is not None:
            page = ranks.report(options.output, source=not options.no_source, force=options.force)
            say(f"wrote {page}")
        unread = [
            path
            for path, is_unread in zip(ranks.ranks["path"], ranks.ranks["peak_bytes"].isna(), strict=True)
            if is_unread
        ]
        if unread:
            files = listed([os.path.relpath(path) for path in unread])
            count = f"{len(unread)} of {counted(len(ranks.ranks), 'capture')}"
            say(f"error: {UNREAD.format(count=count, files=files)}")
        return int(bool(unread))


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
        from memwatch.capture.check import is_capture
        from memwatch.memory_snapshot import read_snapshot

        target = options.output or options.snapshot.with_suffix(".memwatch")
        if is_capture(options.snapshot):
            raise MemwatchError(
                f"{options.snapshot} is a memwatch capture already; memwatch summary shows it"
            )
        if target == options.snapshot:
            raise MemwatchError(
                f"{target} is the input and cannot be the output too; name another output with -o"
            )
        make_room(capture=target, inputs=[options.snapshot], force=options.force)
        save(read_snapshot(options.snapshot, device=options.device), target, force=options.force)
        emit_path(target)
        say(f"next, type {command_line(*memwatch_command(), 'summary', target)}")
        return 0


def _device_type(text: str) -> str:
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not a type of device; give a type such as cuda or xpu")
    return text


class Diff:
    """Compare the peaks of two captures, site by site.

    A site is a place in the program that made memory alive at the peak. If the peak grew by more than `--fail-above`,
    the exit code is 1. With `-o`, memwatch writes a page and prints its path. `--format github` is for a workflow of
    GitHub: a table for a comment, and annotations of the lines that grew.

        memwatch diff before.memwatch after.memwatch
        memwatch diff -o diff.html before.memwatch after.memwatch
        memwatch diff --fail-above 5% main.memwatch branch.memwatch
        memwatch diff --format github main.memwatch branch.memwatch > comment.md
    """

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb."""
        parser.add_argument("old", type=Path, help="the capture to compare with")
        parser.add_argument("new", type=Path, help="the capture that you want to check")
        parser.add_argument(
            "--fail-above", type=share, metavar="SHARE", help="largest growth to allow, such as 5%%"
        )
        parser.add_argument(
            "-o", "--output", type=Path, metavar="PATH", help="write the page of the comparison here"
        )
        parser.add_argument("-f", "--force", action="store_true", help="replace the page if it exists")
        formats = parser.add_mutually_exclusive_group()
        add_json(formats)
        formats.add_argument(
            "--format",
            choices=("text", "github"),
            default="text",
            help="github: Markdown on standard output, and on standard error an annotation of each line that grew, "
            "if the peak grew by more than allowed",
        )
        parser.add_argument(
            "-n", "--rows", type=positive, default=15, help="sites in the text (default %(default)s)"
        )
        add_device(parser)

    @staticmethod
    def execute(options: argparse.Namespace) -> int:
        """Print the comparison; return 1 if the peak grew by more than allowed."""
        from memwatch.reading import compare_peaks, sites_at_peak
        from memwatch.report.records import difference_record

        growth = project_settings().get("limits.growth")
        allowed = growth if options.fail_above is None else options.fail_above
        make_room(page=options.output, inputs=[options.old, options.new], force=options.force)
        with working("memwatch diff"):
            # a generator, so that the first reading is freed before the second is read: long runs need gigabytes
            old, new = (
                sites_at_peak(_read_and_warn(path, options.device)) for path in (options.old, options.new)
            )
            compared = compare_peaks(old, new)
        if options.output is not None:
            _write_page(compared, options)
        if options.json:
            emit_json(difference_record(compared))
        elif options.format == "github":
            _print_for_github(compared, options.rows, allowed)
        elif options.output is not None:
            emit_path(options.output)
        else:
            emit(_differences_as_text(compared, options.rows))
        return int(allowed is not None and compared.growth_ratio > allowed)


def _read_and_warn(path: Path, device: str | None) -> Reading:
    """Read a capture. Print a line if its program failed, because a later part may have a higher peak."""
    reading = read(path, device)
    for note in reading.capture.notes:
        if note.kind == PROGRAM_FAILED:
            say(f"{path.name}: {note.text}")
    return reading


def _write_page(compared: Comparison, options: argparse.Namespace) -> None:
    from memwatch.report import diff_page

    names = [path.name for path in (options.old, options.new)]
    old, new = names if names[0] != names[1] else map(str, (options.old, options.new))
    diff_page(compared, options.output, old=old, new=new, force=options.force)


def _print_for_github(compared: Comparison, rows: int, allowed: float | None) -> None:
    """Print Markdown for a comment on standard output, and workflow commands on standard error.

    Standard output usually goes to a file, and GitHub reads workflow commands only from the log.
    """
    from memwatch.report.github import error_annotations, markdown, repository_root

    root = repository_root()
    emit(markdown(compared, rows=rows, root=root, allowed_ratio=allowed))
    for line in error_annotations(compared, root=root, allowed_ratio=allowed):
        sys.stderr.write(f"{line}\n")


def _differences_as_text(compared: Comparison, rows: int) -> str:
    from rich.table import Table
    from rich.text import Text

    from memwatch.report.console import head, line_width, name, tail, to_text

    grown = compared.new_peak_bytes - compared.old_peak_bytes
    share = f" ({100 * compared.growth_ratio:+.1f} %)" if compared.old_peak_bytes else ""
    sizes = f"{format_bytes(compared.old_peak_bytes)} -> {format_bytes(compared.new_peak_bytes)}"
    where = f" on {compared.device}" if not is_host(compared.device) else ""
    headline = Text(f"Peak{where} {sizes}, {format_change(grown)}{share}", style="bold")
    moment = compared.moved_to
    moved = [Text(moved_peak(moment.op_name, moment.phase, moment.line))] if moment else []
    files = file_remarks(compared.renamed_files, compared.old_files, compared.new_files)
    moved += map(Text, files)
    changed = compared.sites[compared.sites["delta_bytes"] != 0]
    if changed.empty:
        return to_text(headline, *moved, "No site changed.")
    shown = changed.head(rows)
    figures = {
        "Change": [format_change(nbytes) for nbytes in shown["delta_bytes"]],
        "Old": [format_bytes(nbytes) for nbytes in shown["old_bytes"]],
        "New": [format_bytes(nbytes) for nbytes in shown["new_bytes"]],
    }
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading, cells in figures.items():  # in a narrow terminal, words are cut and figures are not
        table.add_column(heading, justify="right", no_wrap=True, min_width=max(map(len, cells)))
    room = line_width(None) - sum(2 + max(map(len, (heading, *cells))) for heading, cells in figures.items())
    categories, modules, _ = (list(texts) for texts in zip(*shown.index, strict=True))
    room -= max(map(len, (*categories, "Category"))) + 4
    for_module = min(max(map(len, (*modules, "Module"))), room // 2)
    for heading in ("Category", "Module", "Site"):
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    for (category, module, site), *cells in zip(shown.index, *figures.values(), strict=True):
        site_cell = head(short_site(site), room - for_module)
        table.add_row(*cells, name(category), tail(module, for_module), site_cell)
    by_category = (
        changed.groupby(level=0)["delta_bytes"].sum().sort_values(key=abs, ascending=False, kind="stable")
    )
    if len(by_category) > 1:  # otherwise the headline has the sum
        sums = ", ".join(f"{category} {format_change(nbytes)}" for category, nbytes in by_category.items())
        moved.append(Text(f"By category: {sums}"))
    rest = changed["delta_bytes"].iloc[rows:]
    more = (
        [Text(f"{counted(len(rest), 'more site')}: {format_change(rest.sum())}", style="dim")]
        if len(rest)
        else []
    )
    return to_text(headline, *moved, "", table, *more)


class _Format(argparse.Action):
    """The format of `transform`. An error says so if the format and the capture are in the wrong order."""

    def __call__(
        self, parser: argparse.ArgumentParser, options: argparse.Namespace, value: Any, *_: Any
    ) -> None:
        first = str(options.capture)
        if value in FORMATS:
            options.format = value
        elif first in FORMATS:
            swapped = command_line(*memwatch_command(), "transform", value, first)
            raise argparse.ArgumentError(
                None, f"the capture comes first and the format second; type {swapped}"
            )
        else:
            formats = ", ".join(FORMATS)
            raise argparse.ArgumentError(self, f"there is no format {value!r}; choose from {formats}")


class Transform:
    """Write a capture in another program's format: csv, json, speedscope, chrome, pprof, memory_viz or parquet.

    `speedscope` is for https://www.speedscope.app. `chrome` is for chrome://tracing and https://ui.perfetto.dev; with
    `--into` it adds memory counters and findings to a trace of torch.profiler. `memory_viz` is a pickle for torch's own
    viewer, https://pytorch.org/memory_viz. `pprof` has the heap at the peak and all allocations by call stack, for `go
    tool pprof` and dashboards. `parquet` adds all tables to a dataset, a folder with parts by host and rank,
    which Dask, DuckDB and pandas read. Without -o, memwatch writes these three beside the capture.

        memwatch transform train.4242.memwatch csv --table storages -o storages.csv
        memwatch transform train.4242.memwatch speedscope > peak.json
        memwatch transform train.4242.memwatch chrome --into trace.json.gz -o both.json.gz
        memwatch transform train.4242.memwatch pprof && go tool pprof -http : train.4242.pb.gz
        memwatch transform train.rank0.4242.memwatch parquet -o dataset
    """

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb."""
        parser.add_argument("capture", type=Path, help="a file that `memwatch run` wrote")
        parser.add_argument("format", action=_Format, help=f"the format to write: {', '.join(FORMATS)}")
        parser.add_argument(
            "--table",
            choices=sorted(DERIVED_BY_NAME),
            metavar="TABLE",
            help=f"the table of the csv: {', '.join(sorted(DERIVED_BY_NAME))} (default at_peak)",
        )
        parser.add_argument(
            "--into",
            type=Path,
            metavar="TRACE",
            help="chrome: add counters and findings to a trace that torch.profiler wrote in the same run",
        )
        parser.add_argument(
            "-o",
            "--output",
            type=Path,
            metavar="FILE",
            help="the file; default: the trace itself with --into and -f, a file beside the capture for pprof, "
            "memory_viz and parquet, and standard output for the others",
        )
        parser.add_argument("-f", "--force", action="store_true", help="replace the file if it exists")
        add_device(parser)

    @staticmethod
    def execute(options: argparse.Namespace) -> int:
        """Write the file, or print it; return 0."""
        if options.table is not None and options.format != "csv":
            options.usage_error(f"--table is for csv, not for {options.format}")
        if options.into is not None:
            return _add_to_trace(options)
        if options.format == MEMORY_VIZ:
            return _write_snapshot(options)
        if options.format == PPROF:
            return _write_pprof(options)
        if options.format == PARQUET:
            return _write_dataset(options)
        from memwatch.report.export import export

        make_room(options.output, inputs=[options.capture], force=options.force)
        text = export(read(options.capture, options.device), options.format, table=options.table or "at_peak")
        if options.output is None:
            emit(text)
        else:
            write_whole(options.output, text, force=options.force)
        return 0


def _add_to_trace(options: argparse.Namespace) -> int:
    """Write the trace with the capture's counters and findings, and print its path; return 0."""
    from memwatch.report.export import into_trace, read_trace, trace_bytes

    if options.format != CHROME:
        options.usage_error(f"--into is for chrome, not for {options.format}")
    trace, target = options.into, options.output or options.into
    replaces_trace = options.force and target.exists() and trace.exists() and target.samefile(trace)
    make_room(target, inputs=[options.capture, *([] if replaces_trace else [trace])], force=options.force)
    merged = into_trace(read(options.capture, options.device), read_trace(trace), trace)
    write_whole(target, trace_bytes(merged, compressed=target.suffix == ".gz"), force=options.force)
    emit_path(target)
    return 0


def _write_snapshot(options: argparse.Namespace) -> int:
    """Write the memory snapshot and print its path; return 0."""
    import pickle

    from memwatch.report.memory_viz import memory_viz

    target = options.output or options.capture.with_suffix(".pickle")
    make_room(target, inputs=[options.capture], force=options.force)
    reading = read(options.capture, options.device)
    devices = reading.devices if options.device is None else [reading.device]
    snapshot = memory_viz(reading.capture, [reading.on(device) for device in devices])
    write_whole(target, pickle.dumps(snapshot), force=options.force)
    emit_path(target)
    return 0


def _write_pprof(options: argparse.Namespace) -> int:
    """Write the profile for pprof and print its path; return 0."""
    from memwatch.report.pprof import pprof

    target = options.output or options.capture.with_suffix(".pb.gz")
    make_room(target, inputs=[options.capture], force=options.force)
    write_whole(target, pprof(read(options.capture, options.device)), force=options.force)
    emit_path(target)
    return 0


def _write_dataset(options: argparse.Namespace) -> int:
    """Add the capture to the dataset and print its path; return 0."""
    from memwatch.report.export import write_dataset

    folder = options.output or options.capture.with_suffix(".parquet")
    write_dataset(read(options.capture, options.device), folder, force=options.force)
    emit_path(folder)
    return 0


class Live:
    """Show a capture while it is being written, from another terminal.

    The screen shows the curve of live bytes, the memory that is alive now by category, the largest storages, and the
    latest iterations with their peaks. The view only reads the file and never touches the program. It takes at most 1 %
    of the processors' time. `q` quits. The screen needs the package textual: pip install "memwatch[live]". If standard
    output is not a terminal, memwatch prints a line of text whenever the file has grown.

        memwatch live train.4242.memwatch
    """

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb."""
        parser.add_argument("capture", type=Path, help="a file that `memwatch run` writes")
        parser.add_argument("--program-output", type=Path, help=argparse.SUPPRESS)  # started by `run --live`
        add_device(parser)

    @staticmethod
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
