"""Put the captures of many processes side by side: ranks of a job, and processes that they started.

memwatch prints a summary. With -o it also writes a page, and beside it the page of the rank with the highest peak. If a
rank was killed, its figures cover the part that it recorded. Missing ranks are listed.

    memwatch merge train.rank*.memwatch
    memwatch merge train.rank*.memwatch -o ranks.html
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memwatch.cli.common import emit, make_room, positive, say

if TYPE_CHECKING:
    import argparse


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
