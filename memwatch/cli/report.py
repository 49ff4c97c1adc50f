"""Write the page of a capture: one HTML file that opens offline.

memwatch prints the path of the page.

    memwatch report train.4242.memwatch
    memwatch report -o peak.html --no-source train.4242.memwatch
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memwatch.cli.common import add_device, emit_path, make_room, read

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("capture", type=Path, help="a file that `memwatch run` wrote")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="PATH", help="the page; default the capture's name with .html"
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace the page if it exists")
    parser.add_argument(
        "--no-source", action="store_true", help="leave out paths, source lines and the command line"
    )
    add_device(parser)


def execute(options: argparse.Namespace) -> int:
    """Write the page and print its path; return 0."""
    page = options.output or options.capture.with_suffix(".html")
    make_room(page, inputs=[options.capture], force=options.force)
    reading = read(options.capture, options.device)
    reading.report(page, source=not options.no_source, force=options.force)
    emit_path(page)
    return 0
