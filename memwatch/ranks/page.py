"""Write the page of a job: peaks over steps, ranks and categories side by side, differences, and the worst rank."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from memwatch.kinds.roles import CATEGORIES
from memwatch.ranks.job import category_spreads, headline, totals
from memwatch.ranks.summary import told_what
from memwatch.report.page.model import code_reader, files_of, findings_model
from memwatch.report.page.privacy import PathHider, file_of
from memwatch.report.page.write import refuse_existing, render, write_whole
from memwatch.text import visible
from memwatch.words.places import short_place
from memwatch.words.storages import short_op

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from memwatch.ranks.job import Job

MOST_LINES: Final = 64
"""The most ranks that the chart shows one by one. If there are more, it shows the lowest, the mean, the highest and the
worst rank. A guess."""
MOST_DIFFERENCES: Final = 200
"""Rows of the table of differences. A guess."""


def write_page(ranks: Job, path: str | os.PathLike[str], *, source: bool, force: bool) -> Path:
    """Write the page of a job and the page of its worst process. Return the path of the job's page.

    Raises:
        ReportError: a file exists and `force` is not set, or its folder cannot be written.
    """
    target = Path(path)
    beside = target.with_name(f"{target.stem}.{ranks.worst.replace(' ', '')}{target.suffix or '.html'}")
    targets = [target, beside] if ranks.worst_path else [target]
    refuse_existing(*targets, inputs=ranks.ranks["path"], force=force)
    model = ranks_model(ranks, source=source)
    if ranks.worst_reading is not None:
        ranks.worst_reading.report(beside, source=source, force=force)
        model["worst_page"] = beside.name
    write_whole(target, render("ranks.html.j2", model, script="ranks.js"), force=force)
    return target


def ranks_model(ranks: Job, *, source: bool = True) -> dict[str, Any]:
    """Return the content of the page as plain JSON values.

    Args:
        ranks: the job.
        source: whether file paths and source lines may be in the page.
    """
    hide, worst = _hider(ranks, source=source), ranks.worst_reading
    return {
        "totals": asdict(totals(ranks)),
        "headline": visible(headline(ranks)),
        "peak_at": _peak_at(ranks, hide, source=source),
        "notes": [[kind, hide(text)] for kind, text in ranks.notes],
        "processes": _processes(ranks, hide, source=source),
        "legend": [name for name in CATEGORIES if len(ranks.categories) and ranks.categories[name].any()],
        "categories": [asdict(each) for each in category_spreads(ranks)] if ranks.are_ranks else [],
        "differences": _differences(ranks, hide, source=source),
        "differing": len(ranks.differences) if ranks.are_ranks else 0,
        "chart": _chart(ranks),
        "worst_page": "",
        "worst_findings": worst and findings_model(worst, hide, code=code_reader(worst, source=source)),
    }


def _hider(ranks: Job, *, source: bool) -> Callable[[str], str]:
    if source:
        return visible
    lines = [*ranks.sites["line"], *ranks.ranks["peak_line"].dropna()]
    files = set() if ranks.worst_reading is None else files_of(ranks.worst_reading)
    hide = PathHider(files | {file_of(line) for line in lines} | set(ranks.ranks["path"]))
    hosts = sorted({str(host) for host in ranks.ranks["host"].dropna()}, key=len, reverse=True)
    aliases = {host: f"host-{number}" for number, host in enumerate(hosts, start=1)}
    pattern = re.compile("|".join(rf"\b{re.escape(host)}\b" for host in hosts)) if hosts else None

    def shown(text: str) -> str:
        text = text if pattern is None else pattern.sub(lambda match: aliases[match[0]], text)
        return visible(hide(text))

    return shown


def _peak_at(ranks: Job, hide: Callable[[str], str], *, source: bool) -> str:
    if not ranks.worst:
        return ""
    row = ranks.ranks.loc[ranks.worst]
    return hide(_peak_text(row, "peak_module", short=source))


def _peak_text(row: pd.Series, *modules: str, short: bool) -> str:
    """Return the op of a peak, its module and its line. To hide paths, the line must have its whole path."""
    module = "".join(f" in `{row[name]}`" for name in modules if row[name])
    line = short_place(row["peak_line"]) if short and row["peak_line"] else row["peak_line"]
    op_name = short_op(row["peak_op"]) if row["peak_op"] else "before the first op"
    return f"{op_name}{module}{f' at {line}' if line else ''}"


def _processes(ranks: Job, hide: Callable[[str], str], *, source: bool) -> list[dict[str, Any]]:
    highest = max(1, *ranks.ranks["peak_bytes"].dropna().tolist())
    return [
        {
            "name": visible(str(name)),
            "host": hide(str(row["host"] or "")),
            "pid": _whole(row["pid"]),
            "parent_pid": _whole(row["parent_pid"]),
            "device": visible(str(row["device"] or "")),
            "is_complete": bool(row["complete"]),
            "peak_bytes": _whole(row["peak_bytes"]),
            "increase_bytes": _whole(row["peak_increase_bytes"]),
            "communication_bytes": _whole(row["communication_bytes"]),
            "steps": _whole(row["steps"]),
            "at": hide(_peak_text(row, short=source)),
            "whole": hide(_peak_text(row, short=False)),
            "bar": _bar(ranks, str(name), highest),
        }
        for name, row in ranks.ranks.iterrows()
    ]


def _whole(number: Any) -> int | None:
    return None if pd.isna(number) else int(number)


def _bar(ranks: Job, name: str, highest_bytes: int) -> list[dict[str, Any]]:
    """Return the parts of a bar by category, in thousandths of the highest peak."""
    if name not in ranks.categories.index:
        return []
    parts, start = [], 0.0
    for category, nbytes in zip(CATEGORIES, ranks.categories.loc[name].tolist(), strict=True):
        width = 1000 * nbytes / highest_bytes
        if width:
            parts.append({"category": category, "start": round(start, 1), "width": round(width, 1)})
        start += width
    return parts


def _differences(ranks: Job, hide: Callable[[str], str], *, source: bool) -> list[dict[str, Any]]:
    if not ranks.are_ranks:
        return []
    shown = ranks.differences.head(MOST_DIFFERENCES).to_dict("records")
    texts = ("where", "category", "module", "what", "line")
    for row in shown:
        row["what"] = told_what(row["category"], row["what"])
        row["line"] = short_place(row["line"]) if source and row["line"] else row["line"]
    return [row | {name: hide(str(row[name])) for name in texts} for row in shown]


def _chart(ranks: Job) -> dict[str, Any] | None:
    """Return the peaks over steps: `step`, and lines with their names; None if no process had two steps."""
    steps = ranks.steps[ranks.steps["process"].isin(ranks.compared)]
    if steps.empty or steps["step"].nunique() < 2:
        return None
    width = int(steps["steps"].max())  # steps per point, the same for all processes
    points = steps.assign(step=steps["step"] // width * width)
    table = points.pivot_table(index="step", columns="process", values="peak_bytes", aggfunc="max")
    worst = table[ranks.worst]
    if table.shape[1] > MOST_LINES:
        lines = {"lowest": table.min(axis=1), "mean": table.mean(axis=1), "highest": table.max(axis=1)}
    else:
        lines = {name: table[name] for name in ranks.compared if name in table and name != ranks.worst}
    return {
        "step": table.index.tolist(),
        "per_point": width,
        "worst": {"name": ranks.worst, "peak_bytes": _numbers(worst)},
        "lines": [{"name": name, "peak_bytes": _numbers(line)} for name, line in lines.items()],
        "is_band": table.shape[1] > MOST_LINES,
    }


def _numbers(values: pd.Series[float]) -> list[int | None]:
    return [None if np.isnan(value) else round(value) for value in values.tolist()]
