"""The metadata of a recording (command, date, versions, device) as lines of text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final

from memwatch.sizes import format_bytes

VERSIONS: Final = ("memwatch", "torch", "python")
SHOWN_ELSEWHERE: Final = frozenset(
    {*VERSIONS, "argv", "start_ns", "started_s", "end_ns", "complete"}
    | {"entry_allocated_bytes", "entry_reserved_bytes", "rounding_bytes", "segments", "expressions"}
    | {"changed_arguments", "grown_lists"}
)
LABELS: Final = {
    "holder_samples": "searches for holders",
    "holder_samples_cut": "searches cut short",
    "holder_samples_ns": "time of searches",
    "intercept": "ops seen by",
    "reserved_bytes": "reserved by allocators",
    "threads_before": "older threads",
    "threads_at_work_before": "older threads that ran ops",
    "threads_unheard": "threads not recorded",
    "stacks": "call stacks",
    "allocator": "allocator events",
}

DURATIONS: Final = ("holder_samples_ns",)
"""Entries that are nanoseconds."""

SIZES: Final = ("reserved_bytes",)
"""Entries that are bytes by device."""


def format_duration(duration_ns: float) -> str:
    """Return a duration (nanoseconds) as text, in a unit that fits: ``1.53 s``, ``12.0 ms``, ``3 min 20 s``."""
    seconds = duration_ns / 1e9
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{duration_ns:.0f} ns"


def describe_meta(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the metadata of a reading as (label, text) pairs; entries without a value are left out."""
    versions = ", ".join(f"{name} {meta[name]}" for name in VERSIONS if name in meta)
    state = "" if meta.get("complete", True) else "no: the program ended before the block did"
    lines = [
        ("command", _command(meta.get("argv"))),
        ("started", _date(meta.get("started_s"))),
        ("duration", _duration(meta)),
        ("complete", state),
        ("versions", versions),
    ]
    rest = [_described(key, meta[key]) for key in meta if key not in SHOWN_ELSEWHERE]
    return [(label, text) for label, text in lines + rest if text]


def _described(key: str, value: object) -> tuple[str, str]:
    label = LABELS.get(key, key.replace("_", " "))
    if key in SIZES:
        return label, _sizes(value)
    return label, format_duration(value) if key in DURATIONS and isinstance(value, int) else _text(value)


def _command(argv: object) -> str:
    if isinstance(argv, (list, tuple)):
        return shlex.join(map(str, argv))
    return _text(argv)


def _date(started_s: object) -> str:
    if not isinstance(started_s, (int, float)):
        return ""
    return datetime.fromtimestamp(started_s, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _duration(meta: Mapping[str, Any]) -> str:
    if "start_ns" not in meta or "end_ns" not in meta:
        return ""
    return format_duration(meta["end_ns"] - meta["start_ns"])


def _sizes(value: object) -> str:
    sizes = value if isinstance(value, Mapping) else {}
    return ", ".join(f"{format_bytes(int(nbytes))} on {name}" for name, nbytes in sizes.items())


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {text}" for name, text in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
