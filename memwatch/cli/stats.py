"""Print totals, the sizes of allocations, and the lines and ops that allocated most.

`memwatch summary` is about the peak. These figures are about the whole recording, with memory that was freed before or
after the peak.

    memwatch stats train.4242.memwatch
    memwatch stats --json train.4242.memwatch
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memwatch.cli.common import add_device, add_json, emit, emit_json, positive, read
from memwatch.progress import working

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("capture", type=Path, help="a file that `memwatch run` wrote")
    add_json(parser)
    parser.add_argument(
        "-n", "--rows", type=positive, default=5, help="lines and ops to list (default %(default)s)"
    )
    add_device(parser)


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
