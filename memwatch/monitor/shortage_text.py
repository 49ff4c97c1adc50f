"""The report on memory that ran out, as text and as a record for JSON."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING, Any, Final

from memwatch.monitor import text
from memwatch.sizes import format_bytes
from memwatch.text import visible
from memwatch.words.allocators import reserved_text

if TYPE_CHECKING:
    from memwatch.monitor.shortage import Shortage

_SHORT: Final = 4  # rows of each list in the note on an error
_LONG: Final = 12  # and in the report
_SIZE: Final = 12


def head_of(found: Shortage) -> str:
    """Return the sentence on what happened."""
    if found.limit is None:
        asked = (
            ""
            if found.asked_bytes is None
            else f"; the request that failed: {format_bytes(found.asked_bytes)}"
        )
        where = " in a worker, another process or thread" if found.in_worker else ""
        return f"memory ran out{where}{asked}"
    limit = found.limit
    return (
        f"memory has nearly run out: {format_bytes(limit.used_bytes)} of {format_bytes(limit.limit_bytes)} "
        f"({limit.used_ratio:.0%}) are in use of {limit.name}"
    )


def note_of(found: Shortage) -> str:
    """Return the note for the error: the live memory, and the changes that would have helped."""
    return "\n".join([f"memwatch: {head_of(found)}", *_live(found, _SHORT), *_changes(found, _SHORT)])


def report_of(found: Shortage) -> str:
    """Return the whole report."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.time_s))
    lines = [
        f"memwatch: {head_of(found)}",
        f"{visible(found.program)}, process {found.pid}, {when}",
        *([f"error: {visible(found.error)}"] if found.error else []),
        "",
        *_live(found, _LONG),
        "",
        *_changes(found, _LONG),
        "",
    ]
    for device, held in found.reserved.items():
        lines.append(f"{device}: {reserved_text(held)}")
    lines += [
        f"limit: {format_bytes(each.used_bytes)} of {format_bytes(each.limit_bytes)} ({each.used_ratio:.0%}) are in "
        f"use of {each.name}"
        for each in found.limits
    ]
    if found.recent:
        lines += ["RSS at the latest looks:"]
        lines += [
            f"{format_bytes(nbytes):>{_SIZE}}  {found.time_s - time_s:,.1f} s before"
            for time_s, nbytes in found.recent[-_LONG:]
        ]
    if found.rows is not None:
        lines += ["", text.of_process(found.rows).rstrip("\n")]
    lines += [f"note: {visible(note)}" for note in found.notes]
    return "\n".join(lines) + "\n"


def _live(found: Shortage, most: int) -> list[str]:
    lines: list[str] = []
    for device in found.devices:
        groups = [group for group in found.live.groups if group.device == device]
        by_category = found.bytes_by_category(device)
        lines.append(f"{format_bytes(sum(by_category.values()))} are alive on {device}, by category:")
        lines += [f"{format_bytes(nbytes):>{_SIZE}}  {name}" for name, nbytes in by_category.items()]
        lines.append("by holder:")
        lines += [
            f"{format_bytes(group.nbytes):>{_SIZE}}  {visible(group.holder)} ({group.category})"
            for group in groups[:most]
        ]
        if len(groups) > most:
            rest_bytes = sum(group.nbytes for group in groups[most:])
            lines.append(f"{format_bytes(rest_bytes):>{_SIZE}}  {len(groups) - most:,} more")
    if containers := found.large_containers:
        lines.append("large containers of Python:")
        lines += [
            f"{format_bytes(nbytes):>{_SIZE}}  {visible(holder)} (`{visible(kind)}` of "
            f"{entries:,} entries; the bytes come from a sample)"
            for kind, holder, entries, nbytes in containers
        ]
    if found.live.why_unknown:
        lines.append(f"the holders are not all known: {found.live.why_unknown}")
    return lines


def _changes(found: Shortage, most: int) -> list[str]:
    changes = found.changes
    if not changes:
        return ["memwatch knows no change that would have left room"]
    return [
        "changes that would have left room, estimated from these bytes:",
        *(
            f"{format_bytes(each.saved_bytes):>{_SIZE}}  {'at most: ' if each.is_upper_bound else ''}"
            f"{visible(each.change)} ({each.category})"
            for each in changes[:most]
        ),
    ]


def record_of(found: Shortage) -> dict[str, Any]:
    """Return the report as a record; see `OutOfMemoryRecord` in docs/json.md."""
    return {
        "program": found.program,
        "pid": found.pid,
        "time_s": found.time_s,
        "error": found.error,
        "asked_bytes": found.asked_bytes,
        "in_worker": found.in_worker,
        "limit": None if found.limit is None else dataclasses.asdict(found.limit),
        "limits": [dataclasses.asdict(each) for each in found.limits],
        "live": [dataclasses.asdict(each) for each in found.live.groups],
        "containers": [
            {"kind": kind, "holder": holder, "entries": entries, "nbytes": nbytes}
            for kind, holder, entries, nbytes in found.large_containers
        ],
        "changes": [dataclasses.asdict(each) for each in found.changes],
        "reserved": [
            {
                "device": device,
                "reserved_bytes": held.reserved_bytes,
                "allocated_bytes": held.allocated_bytes,
                "free_bytes": held.free_bytes,
                "largest_free_bytes": held.largest_free_bytes,
            }
            for device, held in found.reserved.items()
        ],
        "process": None if found.rows is None else text.record_of(found.rows),
        "recent": [{"time_s": time_s, "rss_bytes": nbytes} for time_s, nbytes in found.recent],
        "notes": [*found.notes, *([found.live.why_unknown] if found.live.why_unknown else [])],
    }


def json_of(found: Shortage) -> str:
    """Return the record as JSON."""
    return json.dumps(record_of(found), indent=2) + "\n"
