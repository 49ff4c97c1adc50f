"""Readings for other viewers: CSV and JSON tables, speedscope, Chrome's trace viewer and Perfetto."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import io
import json
import zlib
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import numpy as np

from memwatch._version import __version__
from memwatch.capture.derived import DERIVED_BY_NAME
from memwatch.capture.schema import NONE
from memwatch.errors import MemwatchError
from memwatch.kinds.roles import CATEGORIES
from memwatch.output_files import OutputError, whole_file
from memwatch.report.page.events import live_by_category
from memwatch.report.stats import stats
from memwatch.report.tree import peak_tree
from memwatch.sizes import format_bytes
from memwatch.text import JsonError, read_json
from memwatch.words.places import short_place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import pandas as pd

    from memwatch.analysis.reading import DeviceReading

SPEEDSCOPE_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"
SPEEDSCOPE_LEVELS: Final = ("category", "module", "op_name", "line")


class ExportError(MemwatchError):
    """The table or the format does not exist."""


def export(reading: DeviceReading, format_name: str, *, table: str = "at_peak") -> str:
    """Return a reading in another program's format.

    Args:
        reading: a profile.
        format_name: one of `FORMATS`.
        table: the table to write, for `csv`.

    Returns:
        The text of the file.

    Raises:
        ExportError: the format or the table does not exist.
    """
    if format_name not in FORMATS:
        raise ExportError(f"{format_name!r} is not an export format; choose one of {', '.join(FORMATS)}")
    if format_name == "csv":
        return csv(reading, table)
    return FORMATS[format_name](reading)


def csv(reading: DeviceReading, table: str = "at_peak") -> str:
    """Return one derived table as CSV; its first column is the index.

    Raises:
        ExportError: the table does not exist.
    """
    out = io.StringIO()
    _table(reading, table).to_csv(out, lineterminator="\n", index_label="index")
    # a file name may hold bytes that are not valid text; they must not make the export fail
    return out.getvalue().encode("utf-8", "backslashreplace").decode("utf-8")


def to_json(reading: DeviceReading) -> str:
    """Return the totals and all derived tables as JSON; a table is a list of columns and a list of rows."""
    tables = {name: _split(_table(reading, name)) for name in DERIVED_BY_NAME}
    notes = [{"kind": kind, "text": text} for kind, text in reading.notes]
    return _dump({"memwatch": __version__, "stats": stats(reading), "notes": notes, "tables": tables})


def speedscope(reading: DeviceReading) -> str:
    """Return the peak as a flame graph for https://www.speedscope.app; weights are bytes."""
    frames: dict[str, int] = {}
    samples, weights = [], []
    for path, leaf in peak_tree(reading.at_peak, SPEEDSCOPE_LEVELS).leaves():
        samples.append([frames.setdefault(name, len(frames)) for name in path])
        weights.append(leaf.nbytes)
    profile = {
        "type": "sampled",
        "name": f"peak on {reading.device}",
        "unit": "bytes",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }
    return _dump(
        {
            "$schema": SPEEDSCOPE_SCHEMA,
            "exporter": f"memwatch {__version__}",
            "name": "memwatch",
            "activeProfileIndex": 0,
            "shared": {"frames": [{"name": name} for name in frames]},
            "profiles": [profile],
        }
    )


def chrome_trace(reading: DeviceReading) -> str:
    """Return ops and live bytes for chrome://tracing and https://ui.perfetto.dev (the Trace Event Format)."""
    return _dump(
        {"displayTimeUnit": "ms", "traceEvents": [*_op_events(reading.ops), *counter_events(reading)]}
    )


def _op_events(ops: pd.DataFrame) -> list[dict[str, Any]]:
    columns = (
        "name",
        "phase",
        "module",
        "line",
        "start_ns",
        "duration_ns",
        "born_bytes",
        "live_bytes",
        "peak_bytes",
    )
    return [
        {
            "ph": "X",
            "pid": 0,
            "tid": 0,
            "name": name,
            "cat": phase,
            "ts": start_ns / 1000,
            "dur": duration_ns / 1000,
            "args": {
                "op": op,
                "module": module,
                "line": line,
                "born_bytes": born,
                "live_bytes": live,
                "peak_bytes": peak,
            },
        }
        for op, name, phase, module, line, start_ns, duration_ns, born, live, peak in zip(
            ops.index.tolist(), *(ops[column].tolist() for column in columns), strict=True
        )
    ]


def counter_events(
    reading: DeviceReading, *, name: str = "live bytes", process: int = 0, entry_us: float = 0.0
) -> list[dict[str, Any]]:
    """Return the live bytes by category after each event of the timeline, as counters of the Trace Event Format.

    Args:
        reading: a profile.
        name: the name of the counter.
        process: the process that viewers show it with.
        entry_us: when the recording began, on the clock of the trace.
    """
    curves = live_by_category(reading, np.arange(len(reading.timeline)))
    shown = [category for category in CATEGORIES if curves[category].any()]
    times_ns = reading.timeline["time_ns"].tolist()
    return [
        {
            "ph": "C",
            "pid": process,
            "tid": 0,
            "name": name,
            "ts": entry_us + time_ns / 1000,
            "args": dict(zip(shown, live, strict=True)),
        }
        for time_ns, *live in zip(times_ns, *(curves[category].tolist() for category in shown), strict=True)
    ]


def _table(reading: DeviceReading, name: str) -> pd.DataFrame:
    if name not in DERIVED_BY_NAME:
        raise ExportError(f"{name!r} is not a table; choose one of {', '.join(DERIVED_BY_NAME)}")
    frame: pd.DataFrame = getattr(reading, name)
    return frame


def _split(frame: pd.DataFrame) -> dict[str, Any]:
    split = frame.reset_index().to_dict(orient="split", index=False)
    return {"columns": [str(column) for column in split["columns"]], "rows": split["data"]}


def _dump(value: Mapping[str, Any]) -> str:
    # ASCII only: file names that cannot be decoded survive as escapes
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), default=str) + "\n"


FORMATS: Final[dict[str, Callable[[DeviceReading], str]]] = {
    "csv": csv,
    "json": to_json,
    "speedscope": speedscope,
    "chrome": chrome_trace,
}
"""The formats of `memwatch transform`, each with the function that writes it."""


# Add a reading to a trace of torch.profiler: counters of the live bytes, the peak and the findings beside the ops.
#
# Both tools stamp their events with unix time. Times in a trace are microseconds since its `baseTimeNanoseconds`.
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
    if not path.is_file():
        raise TraceError(
            f"{path} is not a file; name a file that export_chrome_trace of torch.profiler wrote"
        )
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


def into_trace(reading: DeviceReading, trace: dict[str, Any], path: Path) -> dict[str, Any]:
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


def _instants(reading: DeviceReading, process: int, peak_us: float) -> list[dict[str, Any]]:
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


# Write readings to a dataset of Parquet files, for captures of many hosts.
#
# Dask, DuckDB, Spark and pandas can read it.
#
# Each table is a folder. It has one folder for each host, with one folder for each rank inside (Hive's layout), so a
# reader loads only the ranks that it needs. Each process has its own file, and a new capture adds files to the
# dataset.
_ENGINE: Final = "pyarrow"


class DatasetError(MemwatchError):
    """The dataset cannot be written."""


def write_dataset(reading: DeviceReading, folder: Path, *, force: bool = False) -> list[Path]:
    """Add a reading to a dataset.

    Args:
        reading: a profile.
        folder: the dataset; it is created if it does not exist.
        force: whether to replace files of the same process.

    Returns:
        The files written, one for each table.

    Raises:
        DatasetError: pyarrow is missing, a file exists already, or the folder cannot be written.
    """
    if importlib.util.find_spec(_ENGINE) is None:
        raise DatasetError("Parquet needs pyarrow, which is not installed: pip install 'memwatch[parquet]'")
    meta = reading.meta
    # the name comes from the capture, which anyone may have written: quoted, it cannot lead to another folder
    host = quote(str(meta.get("host", "unknown")), safe="")
    place = f"host={host}/rank={meta.get('rank', NONE)}"
    files = {name: folder / name / place / f"{meta.get('pid', 0)}.parquet" for name in DERIVED_BY_NAME}
    existing = [file for file in files.values() if file.exists()]
    if existing and not force:
        raise DatasetError(f"{existing[0]} exists; name another folder with -o, or replace it with -f")
    made: list[Path] = []
    try:
        for name, file in files.items():
            made += [each for each in reversed(file.parents) if not each.exists()]
            file.parent.mkdir(parents=True, exist_ok=True)
            frame: pd.DataFrame = getattr(reading, name)
            with whole_file(file, force=force) as part:
                frame.assign(pid=meta.get("pid", 0)).to_parquet(part, engine=_ENGINE, index=True)
            made.append(file)
    except (OSError, OutputError) as error:
        _remove([path for path in made if path not in existing])
        if isinstance(error, OutputError):
            raise
        raise DatasetError(f"cannot write the dataset {folder}: {error}; choose a writable place") from error
    return list(files.values())


def _remove(paths: list[Path]) -> None:
    """Remove the files and folders of a dataset that could not be finished, the last first."""
    for path in reversed(paths):
        with contextlib.suppress(OSError):  # such as a folder that has files of another process
            path.rmdir() if path.is_dir() else path.unlink()
