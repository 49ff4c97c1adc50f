"""Add a reading to a trace of torch.profiler: counters of the live bytes, the peak and the findings beside the ops.

Both tools stamp their events with unix time. Times in a trace are microseconds since its `baseTimeNanoseconds`.
"""

from __future__ import annotations

import gzip
import json
import zlib
from typing import TYPE_CHECKING, Any, Final

from memwatch.errors import MemwatchError
from memwatch.plain_json import JsonError, read_json
from memwatch.report.export import counter_events
from memwatch.sizes import format_bytes
from memwatch.words.places import short_place

if TYPE_CHECKING:
    from pathlib import Path

    from memwatch.report.source import Reading

_GZIP: Final = b"\x1f\x8b"
_BASE: Final = "baseTimeNanoseconds"
_EVENTS: Final = "traceEvents"


class TraceError(MemwatchError):
    """The file does not hold a trace of torch.profiler, or the trace is from another time than the capture."""


def read_trace(path: Path) -> dict[str, Any]:
    """Return the trace in a file, which may be compressed with gzip.

    Raises:
        TraceError: `torch.profiler` did not write this file.
        OSError: the file cannot be read.
    """
    content = path.read_bytes()
    try:
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
        trace = read_json(content.decode("utf-8", "surrogateescape"))
    except (OSError, EOFError, zlib.error, JsonError) as error:
        raise TraceError(f"cannot read {path}: {error}; write it again with export_chrome_trace") from None
    is_trace = isinstance(trace, dict) and isinstance(trace.get(_EVENTS), list)
    if not is_trace or not isinstance(trace.get(_BASE), int):
        raise TraceError(
            f"{path} has no {_EVENTS} and {_BASE}; name a file that export_chrome_trace of torch.profiler wrote"
        )
    return dict(trace)


def into_trace(reading: Reading, trace: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a trace with the events of a reading at its end.

    Args:
        reading: the profile; its counters are of one device.
        trace: the trace that `read_trace` returned. It is not changed.
        path: the file of the trace, for errors.

    Raises:
        TraceError: no op of the trace ran while the reading was recorded.
    """
    start_ns, end_ns = (int(reading.meta.get(name) or 0) for name in ("start_ns", "end_ns"))
    entry_us = (start_ns - trace[_BASE]) / 1000
    end_us = (end_ns - trace[_BASE]) / 1000
    spans = [
        (each["ts"], each["ts"] + each.get("dur", 0))
        for each in trace[_EVENTS]
        if isinstance(each, dict) and each.get("ph") == "X" and isinstance(each.get("ts"), (int, float))
    ]
    if not any(start <= end_us and end >= entry_us for start, end in spans):
        raise TraceError(
            f"{path} and the capture are of different times; record both in one run, "
            "with torch.profiler inside `memwatch run` or around memwatch.profile()"
        )
    process = int(reading.meta.get("pid") or 0)
    name = f"memwatch: live bytes on {reading.device}"
    counters = counter_events(reading, name=name, process=process, entry_us=entry_us)
    peak_us = entry_us + float(reading.timeline["time_ns"].iloc[reading.peak_event]) / 1000
    return {**trace, _EVENTS: [*trace[_EVENTS], *counters, *_instants(reading, process, peak_us)]}


def trace_bytes(trace: dict[str, Any], *, compressed: bool) -> bytes:
    """Return a trace as the content of a file."""
    text = json.dumps(trace, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return gzip.compress(text, mtime=0) if compressed else text


def _instants(reading: Reading, process: int, peak_us: float) -> list[dict[str, Any]]:
    """Return the peak and the findings, which are about memory at the peak, as instants at the time of the peak."""
    common = {"ph": "i", "s": "p", "pid": process, "tid": process, "ts": peak_us, "cat": "memwatch"}
    peak = {
        **common,
        "name": f"memwatch: peak {format_bytes(reading.peak_bytes)} on {reading.device}",
        "args": {"peak_bytes": reading.peak_bytes, "baseline_bytes": reading.baseline_bytes},
    }
    findings = [
        {
            **common,
            "name": f"memwatch: {found.kind} {format_bytes(found.nbytes)} at {short_place(found.site)}",
            "args": {
                "kind": str(found.kind),
                "nbytes": found.nbytes,
                "holder": found.holder,
                "site": found.site,
                "advice": found.advice,
                "predicted_peak_bytes": found.predicted_peak_bytes,
            },
        }
        for found in reading.findings
    ]
    return [peak, *findings]
