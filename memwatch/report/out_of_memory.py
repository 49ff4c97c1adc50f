"""The report for the moment when memory ran out.

It shows the request, the live memory, and the changes that would have left room.
"""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Final

from memwatch.report.console import line_width
from memwatch.report.facts import bytes_by, bytes_by_line
from memwatch.sizes import format_bytes
from memwatch.words import processes as words
from memwatch.words.places import short_own_place
from memwatch.words.storages import short_op

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    import pandas as pd

    from memwatch.analysis.reading import DeviceReading
    from memwatch.devices import Failure

_ROWS: Final = 4
"""Rows of each part of the breakdown, and findings. A guess."""


def breakdown(
    reading: DeviceReading,
    failure: Failure,
    files: Sequence[str | PathLike[str]],
    *,
    elsewhere: bool,
    notes: Sequence[str],
) -> str:
    """Return the report for the moment at which memory ran out, as lines of text.

    Args:
        reading: the block, for the device that ran out.
        failure: the facts in the error.
        files: the files that were written.
        elsewhere: whether the block had no memory on the device that ran out. The reading is then of another
            device.
        notes: sentences about the allocators.
    """
    event, op = _moment(reading, failure)
    live = reading.held_at(event)
    live = live[:0] if elsewhere else live
    nbytes, device = format_bytes(int(live["nbytes"].sum())), reading.device
    template = words.NOTHING if elsewhere else words.LIVE
    what = words.ABOVE_LIMIT if failure.by_limit else words.LEFT if op is None else words.RAN_OUT
    asked_words = words.ASKED
    if failure.in_worker:
        template, asked_words = words.IN_WORKER, words.ASKED_IN_WORKER
    elif elsewhere:
        what = words.RAN_OUT
    asked_bytes = failure.asked_bytes
    asked = "" if asked_bytes is None else asked_words.format(nbytes=format_bytes(asked_bytes))
    lines = [template.format(nbytes=nbytes, device=device, what=what, asked=asked)]
    if op is not None:
        place = short_own_place(str(op["line"]), str(op["own_line"]))
        lines.append(
            words.FAILED.format(
                op=short_op(str(op["name"])), place=words.AT.format(place=place) if place else ""
            )
        )
    for label, column in words.BREAKDOWN.items():
        if (live[column] != "").any():
            groups = bytes_by_line(live) if column == "line" else bytes_by(live, column)
            lines += [label, *_rows(groups, live, column)]
    lines += notes
    lines += _what_would_help(reading)
    lines = [_wrapped(line) for line in lines]  # not the paths, which are copied
    lines += [words.WROTE.format(file=file) for file in files]
    return "\n".join(lines)


def _wrapped(line: str) -> str:
    """Return a line in the width of the terminal, with the text of a row below the text of its first line.

    In a log, a line stays whole: it has no width, and people search in it.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        return line
    size = len(words.ROW.format(nbytes="", what=""))
    indent = size if line[:size].endswith("  ") else 4
    return textwrap.fill(
        line,
        line_width(None),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _moment(reading: DeviceReading, failure: Failure) -> tuple[int, pd.Series[str] | None]:
    """Return the last event until the end of the op that failed with this error, and the op.

    If no op of the recording failed with it, return the last event and None. For memwatch's own limit, return the
    event of the peak and None.
    """
    if failure.by_limit:
        return reading.peak_event, None
    columns = ["failed", "phase", "line", "own_line"]
    ops = reading.part("ops", columns)
    failed = ops["failed"].to_numpy().nonzero()[0]
    times_ns = reading.part("timeline", ["time_ns"])["time_ns"]
    last = int(failed[-1]) if len(failed) else -1
    if failure.in_worker or last < 0 or not _is_of(ops.iloc[last], failure, is_last=last == len(ops) - 1):
        return max(len(times_ns) - 1, 0), None
    op = reading.part("ops", ["name", "start_ns", "duration_ns", *columns[2:]], [last]).iloc[0]
    after = int(times_ns.searchsorted(int(op["start_ns"]) + int(op["duration_ns"]), side="right"))
    return max(after - 1, 0), op


def _is_of(op: pd.Series[str], failure: Failure, *, is_last: bool) -> bool:
    """Return whether an op failed with this error. The program may have caught the errors of other ops.

    A backward op has the line of its forward op.
    """
    return is_last or op["phase"] == "backward" or not {op["line"], op["own_line"]}.isdisjoint(failure.lines)


def _rows(groups: pd.DataFrame, rows: pd.DataFrame, column: str) -> list[str]:
    """Return a line for each of the largest groups. A kind of holder is shown with its largest holder."""
    lines = []
    for label, group in groups.head(_ROWS).iterrows():
        name = str(label)
        if column == "holder_kind":
            of_kind = bytes_by(rows[rows[column] == label], "holder")
            holder = str(of_kind.index[0])
            name = holder if holder.startswith(name) else words.OF_KIND.format(kind=name, holder=holder)
        lines.append(words.ROW.format(nbytes=format_bytes(group["nbytes"]), what=name))
    if len(groups) > _ROWS:
        rest_bytes = groups["nbytes"].iloc[_ROWS:].sum()
        lines.append(words.REST.format(nbytes=format_bytes(rest_bytes), count=len(groups) - _ROWS))
    return lines


def _what_would_help(reading: DeviceReading) -> list[str]:
    findings = list(reading.findings)[:_ROWS]
    if not findings:
        return [words.NO_FINDING]
    return [words.FINDINGS, *(words.FINDING.format(finding=finding) for finding in findings)]
