"""Print the peak by category, storage, module, line and holder.

The first lines name the peak and its main parts. The findings and changes at the end would lower it.

    memwatch summary train.4242.memwatch
    memwatch summary --json train.4242.memwatch
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

from memwatch.cli.common import (
    add_device,
    add_json,
    command_line,
    emit,
    emit_json,
    memwatch_command,
    positive,
    read,
)
from memwatch.progress import working
from memwatch.words.summary import FIT_COMMAND, NEXT_COMMAND

if TYPE_CHECKING:
    import argparse

    from memwatch.reading import Reading

_LEAST_FALL_RATIO: Final = 0.1
"""A change that lowers the peak by less is not worth the minutes that `memwatch fit` takes: a guess."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("capture", type=Path, help="a file that `memwatch run` wrote")
    parser.add_argument(
        "-n", "--rows", type=positive, help="most rows in each table (default: what fits 60 lines, 8 at most)"
    )
    add_json(parser)
    add_device(parser)


def execute(options: argparse.Namespace) -> int:
    """Print the summary; return 0."""
    from memwatch.report.records import summary_record

    with working("memwatch summary"):
        reading = read(options.capture, options.device)
        made = summary_record(reading, **_rows(options)) if options.json else _text(reading, options)
    if isinstance(made, str):
        emit(made)
    else:
        emit_json(made)
    return 0


def _rows(options: argparse.Namespace) -> dict[str, int]:
    return {} if options.rows is None else {"rows": options.rows}


def _text(reading: Reading, options: argparse.Namespace) -> str:
    """Return the summary, with the command that shows the most about it last."""
    verb = "plan" if reading.capture.rows("arguments") else "report"
    device = () if options.device is None else ("--device", options.device)
    command = command_line(*memwatch_command(), verb, *device, options.capture)
    following = "\n".join([NEXT_COMMAND.format(command=command), *_to_measure(reading)])
    return reading.summary(following=following, **_rows(options))


def _to_measure(reading: Reading) -> list[str]:
    """Return a line with the command that measures changes of the recorded script, if one would help."""
    argv = [str(word) for word in reading.meta.get("argv", ())]
    if not argv or not argv[0].endswith(".py"):
        return []
    from memwatch.fit.way import Kind

    measured = {kind.value for kind in Kind}  # `fit` does not split the batch or take another optimizer
    is_measured = [measured.issuperset(kind.split(" + ")) for kind in reading.ways["kind"]]
    lowest_bytes = (
        int(reading.ways["peak_bytes"][is_measured].min()) if any(is_measured) else reading.peak_bytes
    )
    if lowest_bytes > (1 - _LEAST_FALL_RATIO) * reading.peak_bytes:
        return []
    lowest_mib = lowest_bytes / 2**20
    limit = f"{math.ceil(lowest_mib) if lowest_mib >= 10 else math.ceil(lowest_mib * 10) / 10:g}MiB"
    return [FIT_COMMAND.format(command=command_line(*memwatch_command(), "fit", "--limit", limit, *argv))]
