"""Show the rows of a process: as a table (`memwatch.process_memory`), as text, and as a record for JSON."""

from __future__ import annotations

import os
import textwrap
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psutil

from memwatch.monitor.copies import copies_in_forks, note_faults
from memwatch.monitor.device_memory import HOW
from memwatch.monitor.mappings import ProcessError
from memwatch.monitor.rows import Row, rows_of
from memwatch.signal_handlers import pass_on
from memwatch.sizes import format_bytes
from memwatch.text import visible
from memwatch.words.processes import DEVICE_HEAD, coverage_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from memwatch.monitor.device_memory import DeviceMemory
    from memwatch.monitor.history import Growth
    from memwatch.monitor.rows import Child, ProcessRows

_WIDTH: Final = 28  # characters of a row's name; a guess
_SIZE: Final = 11  # characters of a size: "1023.99 MiB" has as many
_LEAST_HOW: Final = 24
"""Characters of a line that a column of sentences needs. If there is less room, a sentence gets lines of its own. A
guess."""
_OF_DEVICE: Final = "device: {row}"


def process_memory(pid: int | None = None, *, children: bool = True) -> pd.DataFrame:
    """Split the resident memory of a process into rows.

    The rows of this process come from the kernel's list of mappings, from malloc, from Python's allocator and from
    the objects that are alive. For another process, memwatch reads only `/proc`, which doesn't distinguish tensors
    from other memory of malloc. Reading this process takes about 3 s of processor time per million Python objects.

    Args:
        pid: the process; by default this one.
        children: whether to list the processes that it started, in `attrs["children"]`.

    Returns:
        A DataFrame with the columns `row`, `nbytes`, `private_nbytes` and `how`, largest first. If you print it, the
        bytes have units. `nbytes` sums to the RSS of the process, and `private_nbytes` to its USS. Each process that it
        started has one more column, such as `python 4242`: its private bytes by row, only from `/proc`. Each device
        that this process uses has a column too, such as `cuda:0`, with the rows `device: tensors`, `device: cache`,
        `device: reserved elsewhere` and `device: outside torch`. This column sums to the memory of the device that all
        processes together use. The memory is not in RSS, so these rows have 0 in the other columns. `attrs` has `pid`,
        `rss_bytes`, `pss_bytes`, `uss_bytes`, `coverage` (the share of RSS in rows that name a cause), `children`,
        `devices`, `notes` and `findings` (sentences about Python objects that forked processes have copied).

    Raises:
        ProcessError: the process does not exist or belongs to another user, or the system has no `/proc/PID/smaps`.
    """
    from memwatch.monitor.table import ProcessTable

    findings = _findings_about_copies() if children and pid in (None, os.getpid()) else []
    found = rows_of(pid, children=children)
    note_faults()
    columns = {child: _private_bytes(child.pid) for child in found.children}
    own = {row.row: row for row in found.rows}
    for device in found.devices:
        own.update((row, Row(row, 0, 0, HOW[name])) for name, row in _rows_of_device(device))
    names = dict.fromkeys([*own, *(row for rows in columns.values() for row in rows)])
    rows = [own.get(name, Row(name, 0, 0, "a row of the processes that it started")) for name in names]
    frame: pd.DataFrame = ProcessTable(
        [(row.row, row.nbytes, row.private_nbytes, row.how) for row in rows],
        columns=["row", "nbytes", "private_nbytes", "how"],
    )
    for child, private in columns.items():
        frame[f"{child.name} {child.pid}"] = [private.get(name, 0) for name in names]
    for device in found.devices:
        nbytes = {row: device.rows[name] for name, row in _rows_of_device(device)}
        frame[device.device] = [nbytes.get(name, 0) for name in names]
    frame.attrs.update(
        pid=found.pid,
        rss_bytes=found.rss_bytes,
        pss_bytes=found.pss_bytes,
        uss_bytes=found.uss_bytes,
        coverage=found.coverage,
        children=[vars(child) for child in found.children],
        devices=record_of_devices(found.devices),
        notes=found.notes,
        findings=findings,
    )
    return frame


def _rows_of_device(device: DeviceMemory) -> list[tuple[str, str]]:
    """Return the rows of a device, each with its name among the rows of the process."""
    return [(name, _OF_DEVICE.format(row=name)) for name in device.rows]


def _private_bytes(pid: int) -> dict[str, int]:
    """Return the private bytes of another process by row; empty if it has ended or may not be read."""
    try:
        return {row.row: row.private_nbytes for row in rows_of(pid, children=False).rows}
    except ProcessError as error:
        pass_on(error)
        return {}


def _findings_about_copies() -> list[str]:
    """Return sentences about the objects of this process that its forks have copied."""
    try:
        pids = [process.pid for process in psutil.Process().children(recursive=True)]
    except psutil.Error as error:
        pass_on(error)
        return []
    return copies_in_forks(pids)


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
    found: ProcessRows,
    uss_at_first: Mapping[int, int] | None = None,
    earlier: Earlier | None = None,
    width: int | None = None,
) -> str:
    """Return the rows of a process, its devices, its children and the notes as text.

    Args:
        found: the rows.
        uss_at_first: the USS of its children at an earlier time, by pid, to show their growth.
        earlier: an earlier reading, to show the growth of the rows too.
        width: characters in a line; None for lines of any length, one for each row.
    """
    if earlier is not None:
        uss_at_first = earlier.uss_bytes
    grown = _growth_of_rows(found, earlier)
    head = (
        f"process {found.pid} ({visible(found.name)}): RSS {format_bytes(found.rss_bytes)}, "
        f"PSS {format_bytes(found.pss_bytes)}, USS {format_bytes(found.uss_bytes)}; "
        f"{coverage_text(found.coverage, found.start_share)}"
    )
    if earlier is not None:
        head += f"; growth in {earlier.seconds:.1f} s"
    title = "" if earlier is None else f" {'growth':>{_SIZE + 1}}"
    lines = _wrapped(head, "", width)
    lines += _wrapped(
        f"{'':{_WIDTH}} {'bytes':>{_SIZE}} {'private':>{_SIZE}}{title}", "how it is known", width
    )
    for row in found.rows:
        sizes = f"{format_bytes(row.nbytes):>{_SIZE}} {format_bytes(row.private_nbytes):>{_SIZE}}"
        lines += _wrapped(f"{row.row:{_WIDTH}} {sizes}{_signed(grown.get(row.row))}", row.how, width)
    for name, nbytes in grown.items():
        if not found.nbytes(name):
            sizes = f"{'0 B':>{_SIZE}} {'0 B':>{_SIZE}}{_signed(nbytes)}"
            lines += _wrapped(f"{name:{_WIDTH}} {sizes}", "there is none any more", width)
    for device in found.devices:
        lines += ["", _head_of_device(device)]
        for name, nbytes in device.rows.items():
            lines += _wrapped(f"{name:{_WIDTH}} {format_bytes(nbytes):>{_SIZE}}", HOW[name], width)
    if found.children:
        lines += ["", "processes that it started:", *_table_of(found.children, uss_at_first)]
    for note in found.notes:
        lines += _wrapped(f"note: {note}", "", width)
    return "\n".join(lines) + "\n"


def _wrapped(figures: str, sentence: str, width: int | None) -> list[str]:
    """Return a row as lines of at most `width` characters: the figures, and the sentence in a column beside them."""
    if width is None:
        return [f"{figures}  {sentence}" if sentence else figures]
    if not sentence:
        return textwrap.wrap(figures, width, break_on_hyphens=False)
    room = width - len(figures) - 2
    if room < _LEAST_HOW:
        return [
            figures,
            *(f"    {line}" for line in textwrap.wrap(sentence, width - 4, break_on_hyphens=False)),
        ]
    first, *rest = textwrap.wrap(sentence, room, break_on_hyphens=False)
    return [f"{figures}  {first}", *(f"{'':{len(figures)}}  {line}" for line in rest)]


def _head_of_device(device: DeviceMemory) -> str:
    used, capacity = format_bytes(device.used_bytes), format_bytes(device.capacity_bytes)
    return DEVICE_HEAD.format(device=device.device, used=used, capacity=capacity)


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
    """Return the records for `memwatch ps --json`; see `ChildRecord` in docs/json.md."""
    before = {} if earlier is None else earlier.uss_bytes
    return [
        {**vars(each), "growth_bytes": each.uss_bytes - before[each.pid] if each.pid in before else None}
        for each in processes
    ]


def record_of_devices(devices: Sequence[DeviceMemory]) -> list[dict[str, Any]]:
    """Return the memory of devices as records; see `DeviceMemoryRecord` in docs/json.md."""
    return [
        {
            "device": device.device,
            "used_bytes": device.used_bytes,
            "capacity_bytes": device.capacity_bytes,
            "rows": dict(device.rows),
        }
        for device in devices
    ]


def record_of(found: ProcessRows, earlier: Earlier | None = None) -> dict[str, Any]:
    """Return the record for `memwatch ps --json PID`; see `ProcessRecord` in docs/json.md."""
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
        "devices": record_of_devices(found.devices),
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
