"""Print what the peak is made of.

The total comes first; categories, storages, modules, lines and findings follow.

    memwatch summary train.4242.memwatch
    memwatch summary --json train.4242.memwatch
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memwatch.cli.numbers import positive
from memwatch.cli.output import add_json, emit, emit_json
from memwatch.cli.reading import add_device, read
from memwatch.progress import working

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("capture", type=Path, help="a file that `memwatch run` wrote")
    parser.add_argument(
        "-n", "--rows", type=positive, default=8, help="most rows in each table (default %(default)s)"
    )
    add_json(parser)
    add_device(parser)


def execute(options: argparse.Namespace) -> int:
    """Print the summary; return 0."""
    from memwatch.report.records import summary_record

    with working("memwatch summary"):
        reading, rows = read(options.capture, options.device), options.rows
        made = summary_record(reading, rows=rows) if options.json else reading.summary(rows=rows)
    if isinstance(made, str):
        emit(made)
    else:
        emit_json(made)
    return 0
