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
    reading = read(options.capture, options.device)
    if options.json:
        from memwatch.report.records import summary_record

        emit_json(summary_record(reading, rows=options.rows))
    else:
        emit(reading.summary(rows=options.rows))
    return 0
