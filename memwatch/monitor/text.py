"""The rows of a process as text and as a record for JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from memwatch.sizes import format_bytes
from memwatch.text import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memwatch.monitor.history import Growth
    from memwatch.monitor.rows import Child, ProcessRows

_WIDTH: Final = 28  # of a row's name
_SIZE: Final = 11


def of_process(found: ProcessRows, uss_at_first: Mapping[int, int] | None = None) -> str:
    """Return the rows of a process, its children and the notes as text.

    Args:
        found: the rows.
        uss_at_first: the USS of its children by pid when somebody first saw them, to show their growth.
    """
    head = (
        f"process {found.pid} ({visible(found.name)}): RSS {format_bytes(found.rss_bytes)}, "
        f"PSS {format_bytes(found.pss_bytes)}, USS {format_bytes(found.uss_bytes)}; "
        f"{found.coverage:.0%} of RSS explained"
    )
    lines = [
        head,
        f"{'':{_WIDTH}} {'bytes':>{_SIZE}} {'private':>{_SIZE}}  how it is known",
        *(
            f"{row.row:{_WIDTH}} {format_bytes(row.nbytes):>{_SIZE}} {format_bytes(row.private_nbytes):>{_SIZE}}  "
            f"{row.how}"
            for row in found.rows
        ),
    ]
    if found.children:
        lines += ["", "processes that it started:", *_table_of(found.children, uss_at_first)]
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines) + "\n"


def of_processes(processes: Sequence[Child]) -> str:
    """Return a table of processes as text."""
    if not processes:
        return "no Python process that this user may read is running\n"
    return "\n".join(_table_of(processes)) + "\n"


def _table_of(processes: Sequence[Child], uss_at_first: Mapping[int, int] | None = None) -> list[str]:
    def growth(each: Child) -> str:
        if uss_at_first is None:
            return ""
        grown = each.uss_bytes - uss_at_first.get(each.pid, each.uss_bytes)
        return f" {'-' if grown < 0 else '+'}{format_bytes(abs(grown)):>{_SIZE}}"

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


def record_of(found: ProcessRows) -> dict[str, Any]:
    """Return what `memwatch ps --json` prints; see `ProcessRecord` in docs/json.md."""
    return {
        "pid": found.pid,
        "name": found.name,
        "rss_bytes": found.rss_bytes,
        "pss_bytes": found.pss_bytes,
        "uss_bytes": found.uss_bytes,
        "coverage": found.coverage,
        "rows": [vars(row) for row in found.rows],
        "children": [vars(child) for child in found.children],
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
