"""The rows of a process as text and as a record for JSON."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from memwatch.sizes import format_bytes
from memwatch.text import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memwatch.monitor.history import Growth
    from memwatch.monitor.rows import Child, ProcessRows

_WIDTH: Final = 28  # of a row's name
_SIZE: Final = 11


@dataclass(frozen=True)
class Earlier:
    """An earlier reading of a process or of several, to show the growth since then.

    Attributes:
        seconds: the time between the readings.
        rows: bytes by row.
        uss_bytes: USS by the number of the process.
    """

    seconds: float
    rows: Mapping[str, int]
    uss_bytes: Mapping[int, int]


def of_process(
    found: ProcessRows, uss_at_first: Mapping[int, int] | None = None, earlier: Earlier | None = None
) -> str:
    """Return the rows of a process, its children and the notes as text.

    Args:
        found: the rows.
        uss_at_first: the USS of its children by pid when somebody first saw them, to show their growth.
        earlier: an earlier reading, to show the growth of the rows too.
    """
    if earlier is not None:
        uss_at_first = earlier.uss_bytes
    grown = _growth_of_rows(found, earlier)
    head = (
        f"process {found.pid} ({visible(found.name)}): RSS {format_bytes(found.rss_bytes)}, "
        f"PSS {format_bytes(found.pss_bytes)}, USS {format_bytes(found.uss_bytes)}; "
        f"{found.coverage:.0%} of RSS explained"
    )
    if earlier is not None:
        head += f"; growth in {earlier.seconds:.1f} s"
    title = "" if earlier is None else f" {'growth':>{_SIZE + 1}}"
    lines = [
        head,
        f"{'':{_WIDTH}} {'bytes':>{_SIZE}} {'private':>{_SIZE}}{title}  how it is known",
        *(
            f"{row.row:{_WIDTH}} {format_bytes(row.nbytes):>{_SIZE}} {format_bytes(row.private_nbytes):>{_SIZE}}"
            f"{_signed(grown.get(row.row))}  {row.how}"
            for row in found.rows
        ),
    ]
    lines += [
        f"{row:{_WIDTH}} {'0 B':>{_SIZE}} {'0 B':>{_SIZE}}{_signed(nbytes)}  there is none any more"
        for row, nbytes in grown.items()
        if not found.nbytes(row)
    ]
    if found.children:
        lines += ["", "processes that it started:", *_table_of(found.children, uss_at_first)]
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines) + "\n"


def _growth_of_rows(found: ProcessRows, earlier: Earlier | None) -> dict[str, int]:
    if earlier is None:
        return {}
    names = dict.fromkeys([*(row.row for row in found.rows), *earlier.rows])
    return {name: found.nbytes(name) - earlier.rows.get(name, 0) for name in names}


def _signed(nbytes: int | None) -> str:
    return "" if nbytes is None else f" {'-' if nbytes < 0 else '+'}{format_bytes(abs(nbytes)):>{_SIZE}}"


def of_processes(processes: Sequence[Child], earlier: Earlier | None = None) -> str:
    """Return a table of processes as text, with the growth of their USS since an earlier reading."""
    if not processes:
        return "no Python process that this user may read is running\n"
    return "\n".join(_table_of(processes, None if earlier is None else earlier.uss_bytes)) + "\n"


def _table_of(processes: Sequence[Child], uss_at_first: Mapping[int, int] | None = None) -> list[str]:
    def growth(each: Child) -> str:
        if uss_at_first is None:
            return ""
        if each.pid not in uss_at_first:
            return f" {'new':>{_SIZE + 1}}"
        return _signed(each.uss_bytes - uss_at_first[each.pid])

    more = "" if uss_at_first is None else f" {'USS growth':>{_SIZE + 1}}"
    return [
        f"{'pid':>8} {'RSS':>{_SIZE}} {'PSS':>{_SIZE}} {'USS':>{_SIZE}}{more} {'shared':>{_SIZE}}  name",
        *(
            f"{each.pid:>8} {format_bytes(each.rss_bytes):>{_SIZE}} {format_bytes(each.pss_bytes):>{_SIZE}} "
            f"{format_bytes(each.uss_bytes):>{_SIZE}}{growth(each)} {format_bytes(each.shared_bytes):>{_SIZE}}  "
            f"{visible(each.name)}"
            for each in processes
        ),
    ]


def record_of_processes(processes: Sequence[Child], earlier: Earlier | None = None) -> list[dict[str, Any]]:
    """Return what `memwatch ps --json` prints; see `ChildRecord` in docs/json.md."""
    before = {} if earlier is None else earlier.uss_bytes
    return [
        {**vars(each), "growth_bytes": each.uss_bytes - before[each.pid] if each.pid in before else None}
        for each in processes
    ]


def record_of(found: ProcessRows, earlier: Earlier | None = None) -> dict[str, Any]:
    """Return what `memwatch ps --json PID` prints; see `ProcessRecord` in docs/json.md."""
    grown = _growth_of_rows(found, earlier)
    rows = [{**vars(row), "growth_bytes": grown.get(row.row)} for row in found.rows]
    gone = [
        {
            "row": name,
            "nbytes": 0,
            "private_nbytes": 0,
            "how": "there is none any more",
            "growth_bytes": nbytes,
        }
        for name, nbytes in grown.items()
        if not found.nbytes(name)
    ]
    return {
        "pid": found.pid,
        "name": found.name,
        "rss_bytes": found.rss_bytes,
        "pss_bytes": found.pss_bytes,
        "uss_bytes": found.uss_bytes,
        "coverage": found.coverage,
        "rows": rows + gone,
        "children": record_of_processes(found.children, earlier),
        "growth_s": None if earlier is None else earlier.seconds,
        "notes": found.notes,
    }


def of_growth(growth: Growth, cause: str) -> str:
    """Return a sentence on a row that grows, and a line on its cause."""
    since = time.strftime("%H:%M:%S", time.localtime(growth.since_s))
    rate = growth.bytes_per_thousand_ticks
    per_step = "" if rate is None else f", {format_bytes(rate)} per 1,000 steps"
    line = (
        f"{growth.row} +{format_bytes(growth.nbytes)} since {since} "
        f"({format_bytes(growth.bytes_per_hour)} per hour{per_step})\n"
    )
    return line + (f"    {visible(cause)}\n" if cause else "")
