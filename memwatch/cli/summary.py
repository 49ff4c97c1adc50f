"""Print what the peak is made of.

The total comes first; categories, storages, modules, lines and findings follow.

    memwatch summary train.4242.memwatch
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memwatch.cli.numbers import positive
from memwatch.cli.output import emit
from memwatch.cli.reading import add_device, read

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("capture", type=Path, help="a file that `memwatch run` wrote")
    parser.add_argument(
        "-n", "--rows", type=positive, default=8, help="most rows in each table (default %(default)s)"
    )
    add_device(parser)


def execute(options: argparse.Namespace) -> int:
    """Print the summary; return 0."""
    emit(read(options.capture, options.device).summary(rows=options.rows))
    return 0
