"""`memwatch.process_memory`: the rows of a process as a table, beside the processes that it started."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil

from memwatch.monitor.examine import copies_in_forks
from memwatch.monitor.mappings import ProcessError
from memwatch.monitor.rows import Row, rows_of
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    import pandas as pd


def process_memory(pid: int | None = None, *, children: bool = True) -> pd.DataFrame:
    """Split the resident memory of a process into rows.

    The rows of this process come from the kernel's list of mappings, from malloc, from Python's allocator and from
    the objects that are alive. For another process, memwatch reads `/proc` alone, which doesn't distinguish tensors
    from other memory of malloc. Reading this process takes about 4 s per million Python objects.

    Args:
        pid: the process; by default this one.
        children: whether to list the processes that it started, in `attrs["children"]`.

    Returns:
        A table with the columns `row`, `nbytes`, `private_nbytes` and `how`, largest first. `nbytes` sums to
        the RSS of the process, and `private_nbytes` to its USS. Each process that it started has one more column, such
        as `python 4242`: its private bytes by row, from `/proc` alone. `attrs` has `pid`, `rss_bytes`, `pss_bytes`,
        `uss_bytes`, `coverage` (the share of RSS in rows that name a cause), `children`, `notes` and `findings`
        (sentences about lists whose objects forked processes have copied).

    Raises:
        ProcessError: the process does not exist or belongs to another user, or the system has no `/proc/PID/smaps`.
    """
    import pandas as pd

    findings = _findings_about_copies() if children and pid in (None, os.getpid()) else []
    found = rows_of(pid, children=children)
    columns = {child: _private_bytes(child.pid) for child in found.children}
    own = {row.row: row for row in found.rows}
    names = dict.fromkeys([*own, *(row for rows in columns.values() for row in rows)])
    rows = [own.get(name, Row(name, 0, 0, "a row of the processes that it started")) for name in names]
    frame: pd.DataFrame = pd.DataFrame(
        [(row.row, row.nbytes, row.private_nbytes, row.how) for row in rows],
        columns=["row", "nbytes", "private_nbytes", "how"],
    )
    for child, private in columns.items():
        frame[f"{child.name} {child.pid}"] = [private.get(name, 0) for name in names]
    frame.attrs.update(
        pid=found.pid,
        rss_bytes=found.rss_bytes,
        pss_bytes=found.pss_bytes,
        uss_bytes=found.uss_bytes,
        coverage=found.coverage,
        children=[vars(child) for child in found.children],
        notes=found.notes,
        findings=findings,
    )
    return frame


def _private_bytes(pid: int) -> dict[str, int]:
    """Return the private bytes of another process by row; nothing if it has ended or may not be read."""
    try:
        return {row.row: row.private_nbytes for row in rows_of(pid, children=False).rows}
    except ProcessError as error:
        pass_on(error)
        return {}


def _findings_about_copies() -> list[str]:
    """Return sentences about the lists of this process whose objects its forks have copied."""
    try:
        pids = [process.pid for process in psutil.Process().children(recursive=True)]
    except psutil.Error as error:
        pass_on(error)
        return []
    return copies_in_forks(pids)
