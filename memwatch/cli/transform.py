"""Write a capture in another program's format: csv, json, speedscope or chrome.

`speedscope` is for https://www.speedscope.app, `chrome` for chrome://tracing and https://ui.perfetto.dev.

    memwatch transform train.4242.memwatch csv --table storages -o storages.csv
    memwatch transform train.4242.memwatch speedscope > peak.json
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memwatch.capture.derived import DERIVED_BY_NAME
from memwatch.cli.files import make_room
from memwatch.cli.output import emit
from memwatch.cli.reading import add_device, read

if TYPE_CHECKING:
    import argparse

FORMATS = ("csv", "json", "speedscope", "chrome")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("capture", type=Path, help="a file that `memwatch run` wrote")
    parser.add_argument("format", choices=FORMATS, help="the format to write")
    parser.add_argument(
        "--table", choices=sorted(DERIVED_BY_NAME), default="at_peak", help="the table of the csv"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the file; default standard output")
    parser.add_argument("-f", "--force", action="store_true", help="replace the file if it exists")
    add_device(parser)


def execute(options: argparse.Namespace) -> int:
    """Write the file, or print it; return 0."""
    from memwatch.report.export import export

    if options.output is not None:
        make_room(options.output, force=options.force)
    text = export(read(options.capture, options.device), options.format, table=options.table)
    if options.output is None:
        emit(text)
    else:
        options.output.write_text(text, encoding="utf-8")
    return 0
