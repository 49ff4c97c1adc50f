"""Compare the peaks of two captures, site by site.

A site is a place in the program that made memory alive at the peak. If the peak grew by more than `--fail-above`, the
exit code is 1. With `-o`, memwatch writes a page and prints its path. `--format github` is for a workflow of GitHub: a
table for a comment, and annotations of the lines that grew.

    memwatch diff before.memwatch after.memwatch
    memwatch diff -o diff.html before.memwatch after.memwatch
    memwatch diff --fail-above 5% main.memwatch branch.memwatch
    memwatch diff --format github main.memwatch branch.memwatch > comment.md
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from memwatch.cli.common import (
    add_device,
    add_json,
    emit,
    emit_json,
    emit_path,
    make_room,
    positive,
    read,
    share,
)
from memwatch.device_names import is_host
from memwatch.progress import working
from memwatch.settings import project_settings
from memwatch.sizes import format_bytes
from memwatch.words.storages import short_site

if TYPE_CHECKING:
    import argparse

    from memwatch.analysis.compare import Comparison


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
    parser.add_argument("-n", "--rows", type=positive, default=15, help="sites to list (default %(default)s)")
    add_device(parser)


def execute(options: argparse.Namespace) -> int:
    """Print the comparison; return 1 if the peak grew by more than allowed."""
    from memwatch.reading import compare_peaks, sites_at_peak
    from memwatch.report.records import difference_record

    growth = project_settings().get("limits.growth")
    allowed = growth if options.fail_above is None else options.fail_above
    make_room(options.output, inputs=[options.old, options.new], force=options.force)
    with working("memwatch diff"):
        # the one is gone when the other is read: long runs need gigabytes
        old = sites_at_peak(read(options.old, options.device))
        compared = compare_peaks(old, sites_at_peak(read(options.new, options.device)))
    if options.output is not None:
        _write_page(compared, options)
    if options.json:
        emit_json(difference_record(compared))
    elif options.format == "github":
        _print_for_github(compared, options.rows, allowed)
    elif options.output is not None:
        emit_path(options.output)
    else:
        emit(_as_text(compared, options.rows))
    return int(allowed is not None and compared.growth_ratio > allowed)


def _write_page(compared: Comparison, options: argparse.Namespace) -> None:
    from memwatch.report import diff_page

    names = [path.name for path in (options.old, options.new)]
    old, new = names if names[0] != names[1] else map(str, (options.old, options.new))
    diff_page(compared, options.output, old=old, new=new, force=options.force)


def _print_for_github(compared: Comparison, rows: int, allowed: float | None) -> None:
    """Print Markdown for a comment, and workflow commands where redirected output does not swallow them."""
    from memwatch.report.github import error_annotations, markdown, repository_root

    root = repository_root()
    emit(markdown(compared, rows=rows, root=root, allowed_ratio=allowed))
    for line in error_annotations(compared, root=root, allowed_ratio=allowed):
        sys.stderr.write(f"{line}\n")


def _as_text(compared: Comparison, rows: int) -> str:
    from rich.table import Table
    from rich.text import Text

    from memwatch.report.console import head, line_width, name, tail, to_text

    grown = compared.new_peak_bytes - compared.old_peak_bytes
    share = f" ({100 * compared.growth_ratio:+.1f} %)" if compared.old_peak_bytes else ""
    sizes = f"{format_bytes(compared.old_peak_bytes)} -> {format_bytes(compared.new_peak_bytes)}"
    where = f" on {compared.device}" if not is_host(compared.device) else ""
    headline = Text(f"Peak{where} {sizes}, {_signed(grown)}{share}", style="bold")
    changed = compared.sites[compared.sites["delta_bytes"] != 0]
    if changed.empty:
        return to_text(headline, "No site changed.")
    shown = changed.head(rows)
    figures = {
        "Change": [_signed(nbytes) for nbytes in shown["delta_bytes"]],
        "Old": [format_bytes(nbytes) for nbytes in shown["old_bytes"]],
        "New": [format_bytes(nbytes) for nbytes in shown["new_bytes"]],
    }
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading, cells in figures.items():  # where the line is short, words give way and not figures
        table.add_column(heading, justify="right", no_wrap=True, min_width=max(map(len, cells)))
    room = line_width(None) - sum(2 + max(map(len, (heading, *cells))) for heading, cells in figures.items())
    categories, modules, _ = (list(texts) for texts in zip(*shown.index, strict=True))
    room -= max(map(len, (*categories, "Category"))) + 4
    for_module = min(max(map(len, (*modules, "Module"))), room // 2)
    for heading in ("Category", "Module", "Site"):
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    for (category, module, site), *cells in zip(shown.index, *figures.values(), strict=True):
        told = head(short_site(site), room - for_module)
        table.add_row(*cells, name(category), tail(module, for_module), told)
    rest = changed["delta_bytes"].iloc[rows:]
    more = [Text(f"{len(rest):,} more sites: {_signed(rest.sum())}", style="dim")] if len(rest) else []
    return to_text(headline, "", table, *more)


def _signed(nbytes: int) -> str:
    return f"{'+' if nbytes > 0 else ''}{format_bytes(nbytes)}"
