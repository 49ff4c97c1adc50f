"""Readings for other viewers: CSV and JSON tables, speedscope, Chrome's trace viewer and Perfetto."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch._version import __version__
from memwatch.capture.derived import DERIVED_BY_NAME
from memwatch.errors import MemwatchError
from memwatch.kinds.roles import CATEGORIES
from memwatch.report.page.curve import live_by_category
from memwatch.report.stats import stats
from memwatch.report.tree import peak_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pandas as pd

    from memwatch.report.source import Reading

SPEEDSCOPE_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"
SPEEDSCOPE_LEVELS: Final = ("category", "module", "op_name", "line")


class ExportError(MemwatchError):
    """The table or the format does not exist."""


def export(reading: Reading, format_name: str, *, table: str = "at_peak") -> str:
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


def csv(reading: Reading, table: str = "at_peak") -> str:
    """Return one derived table as CSV; its first column is the index.

    Raises:
        ExportError: the table does not exist.
    """
    out = io.StringIO()
    _table(reading, table).to_csv(out, lineterminator="\n", index_label="index")
    # a file name may hold bytes that are not valid text; they must not make the export fail
    return out.getvalue().encode("utf-8", "backslashreplace").decode("utf-8")


def to_json(reading: Reading) -> str:
    """Return the totals and all derived tables as JSON; a table is a list of columns and a list of rows."""
    tables = {name: _split(_table(reading, name)) for name in DERIVED_BY_NAME}
    notes = [{"kind": kind, "text": text} for kind, text in reading.notes]
    return _dump({"memwatch": __version__, "stats": stats(reading), "notes": notes, "tables": tables})


def speedscope(reading: Reading) -> str:
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


def chrome_trace(reading: Reading) -> str:
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
    reading: Reading, *, name: str = "live bytes", process: int = 0, entry_us: float = 0.0
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


def _table(reading: Reading, name: str) -> pd.DataFrame:
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


FORMATS: Final[dict[str, Callable[[Reading], str]]] = {
    "csv": csv,
    "json": to_json,
    "speedscope": speedscope,
    "chrome": chrome_trace,
}
"""The formats of `memwatch transform`, each with the function that writes it."""
