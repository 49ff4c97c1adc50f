"""What was recorded where, as lines of text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final

LABELS: Final = {
    "argv": "command",
    "start_time": "started",
    "start_ns": "started",
    "duration_ns": "duration",
    "threads": "threads",
    "thread_count": "threads",
    "torch": "torch",
    "versions": "versions",
    "interceptor": "interceptor",
    "intercept": "interceptor",
}


def format_duration(duration_ns: float) -> str:
    """Print a duration (nanoseconds) with a unit that fits: ``1.53 s``, ``12.0 ms``, ``3 min 20 s``."""
    seconds = duration_ns / 1e9
    if seconds >= 60:
        return f"{int(seconds // 60)} min {seconds % 60:.0f} s"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{duration_ns:.0f} ns"


def describe_meta(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Say what a reading's metadata holds, a label and a text each; empty values are left out."""
    lines = [(LABELS.get(key, key.replace("_", " ")), _text(key, value)) for key, value in meta.items()]
    return [(label, text) for label, text in lines if text]


def _text(key: str, value: Any) -> str:
    if value is None or value == "":
        return ""
    if key == "argv" and not isinstance(value, str):
        return shlex.join(map(str, value))
    if key.endswith("duration_ns"):
        return format_duration(float(value))
    if key in {"start_ns", "start_time"} and isinstance(value, (int, float)):
        seconds = value / 1e9 if value > 1e12 else value
        return datetime.fromtimestamp(seconds, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)
