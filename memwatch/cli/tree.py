"""Print the peak as a tree: category, module, line.

The output is plain text that needs no terminal.

    memwatch tree train.4242.memwatch
    memwatch tree --by module,op_name train.4242.memwatch
"""

from __future__ import annotations

import argparse
from pathlib import Path

from memwatch.capture.derived import DERIVED_BY_NAME
from memwatch.cli.common import add_device, add_json, emit, emit_json, positive, read


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


def _levels(text: str) -> list[str]:
    known = [column.name for column in DERIVED_BY_NAME["at_peak"].columns if column.kind == "text"]
    levels = text.split(",")
    if not set(levels) <= set(known):
        raise argparse.ArgumentTypeError(f"{text!r} is unknown; choose from {', '.join(known)}")
    return levels


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
