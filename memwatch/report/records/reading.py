"""A reading, a comparison of two, and a plan as records."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from memwatch.errors import MemwatchError
from memwatch.report.facts import bytes_by, evidence_bytes, peak_instant, way_ranks
from memwatch.report.tree import LEVELS, Node, peak_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from memwatch.analysis.compare import Comparison
    from memwatch.analysis.findings.finding import Finding
    from memwatch.analysis.reading import DeviceReading
    from memwatch.planner.plan import Plan
    from memwatch.report.plan import Replayed
    from memwatch.report.records.schema import (
        DifferenceRecord,
        FindingRecord,
        GroupRecord,
        HeldStorageRecord,
        LiveRecord,
        PeakRecord,
        PlanRecord,
        ReadingsRecord,
        ReplayRecord,
        StorageRecord,
        SummaryRecord,
        TreeRecord,
        WayRecord,
    )

_STORAGE: Final = ("nbytes", "category", "name", "tensor", "module", "op_name", "line")
_HELD: Final = (*_STORAGE, "phase", "holder", "holder_kind", "holder_evidence")


class UnknownEventError(MemwatchError):
    """The timeline does not have the event that the caller named."""


def summary_record(reading: DeviceReading, *, rows: int = 8) -> SummaryRecord:
    """Return what the peak is made of, with all findings and changes that would lower it.

    Args:
        reading: the recording.
        rows: most rows of the lists of modules, lines, holders and storages.
    """
    peak = reading.at_peak
    return {
        "peak": _peak(reading),
        "devices": {device: reading.on(device).peak_bytes for device in reading.devices},
        "categories": _groups(peak, "category", len(peak)),
        "modules": _groups(peak, "module", rows),
        "lines": _groups(peak, "line", rows),
        "holders": _groups(peak[peak["holder"] != ""], "holder_kind", rows),
        "evidence_bytes": evidence_bytes(reading),
        "storages": holders_record(reading, rows=rows),
        "num_storages": len(peak),
        "findings": findings_record(reading),
        "ways": ways_record(reading),
        "notes": [{"kind": kind, "text": text} for kind, text in reading.notes],
        "process": _readings(reading),
    }


def _readings(reading: DeviceReading) -> ReadingsRecord | None:
    process = reading.process
    if process.empty:
        return None
    rows: list[Any] = process.to_dict("records")
    largest = max(rows, key=lambda row: row["rss_bytes"])
    return {"entry": rows[0], "largest": largest, "last": rows[-1], "readings": len(rows)}


def holders_record(reading: DeviceReading, *, rows: int = 20, matching: str = "") -> list[HeldStorageRecord]:
    """Return the largest storages at the peak with their holders.

    If `matching` is given, only storages with this text in a column other than the size. Case does not count.
    """
    peak = reading.at_peak
    if matching:
        texts = peak[[column for column in _HELD if column != "nbytes"]].agg("\n".join, axis=1)
        peak = peak[texts.str.contains(matching, case=False, regex=False)]
    found: list[Any] = _storages(peak.head(rows), _HELD)
    return found


def findings_record(reading: DeviceReading, *, rows: int | None = None) -> list[FindingRecord]:
    """Return the findings: memory that is alive without need, largest first."""
    return [_finding(finding) for finding in reading.findings[:rows]]


def ways_record(reading: DeviceReading, *, rows: int | None = None) -> list[WayRecord]:
    """Return the changes of the program that would lower the peak, the lowest peak first.

    The summary lists them in another order, their `rank`: another optimizer comes last there.
    """
    found: list[Any] = reading.ways[:rows].to_dict("records")
    for way, rank in zip(found, way_ranks(reading), strict=False):
        way["rank"] = rank
        if math.isnan(way["time_ratio"]):
            way["time_ratio"] = None  # JSON has no NaN
    return found


def live_record(reading: DeviceReading, event: int | None = None, *, rows: int = 20) -> LiveRecord:
    """Return the live storages just after an event of the timeline; by default the event of the peak.

    Raises:
        UnknownEventError: the timeline does not have this event.
    """
    count = len(reading.part("timeline", ()))
    event = peak_instant(reading).event if event is None else event
    if not 0 <= event < count:
        raise UnknownEventError(f"event {event} is not in the timeline; it has events 0 to {count - 1}")
    row = reading.part("timeline", ["time_ns", "live_bytes"], [event]).iloc[0]
    alive = reading.live_at(event).sort_values("nbytes", ascending=False, kind="stable")
    largest: list[StorageRecord] = _storages(alive.head(rows), _STORAGE)
    return {
        "device": reading.device,
        "event": event,
        "time_ns": int(row["time_ns"]),
        "live_bytes": int(row["live_bytes"]),
        "num_storages": len(alive),
        "storages": largest,
    }


def tree_record(reading: DeviceReading, levels: Sequence[str] = LEVELS) -> TreeRecord:
    """Return the peak as a tree, split by columns of `at_peak`."""
    return _branch(peak_tree(reading.at_peak, levels))


def _branch(node: Node) -> TreeRecord:
    children = [_branch(child) for child in node.children]
    return {"name": node.name, "nbytes": node.nbytes, "count": node.count, "children": children}


def _peak(reading: DeviceReading) -> PeakRecord:
    at = peak_instant(reading)
    return {
        "device": reading.device,
        "peak_bytes": reading.peak_bytes,
        "baseline_bytes": reading.baseline_bytes,
        "peak_increase_bytes": reading.peak_increase_bytes,
        "event": at.event,
        "time_ns": at.time_ns,
        "op": at.op,
        "op_name": at.op_name,
        "phase": at.phase,
        "module": at.module,
        "line": at.line,
        "own_line": at.own_line,
    }


def _groups(rows: pd.DataFrame, column: str, most: int) -> list[GroupRecord]:
    return [
        {"name": str(name), "nbytes": int(row["nbytes"]), "count": int(row["count"])}
        for name, row in bytes_by(rows, column).head(most).iterrows()
    ]


def _storages(rows: pd.DataFrame, columns: Sequence[str]) -> list[Any]:
    """Return rows of storages as records; a column that an imported capture lacks is left out."""
    named = rows[[column for column in columns if column in rows]].rename_axis("storage").reset_index()
    return [
        {name: value if isinstance(value, str) else int(value) for name, value in row.items()}
        for row in named.to_dict("records")
    ]


def _finding(finding: Finding) -> FindingRecord:
    return {
        "kind": str(finding.kind),
        "nbytes": finding.nbytes,
        "holder": finding.holder,
        "site": finding.site,
        "added_at": list(finding.added_at),
        "advice": finding.advice,
        "path": finding.path.splitlines(),
        "predicted_peak_bytes": finding.predicted_peak_bytes,
        "storages": [int(storage) for storage in finding.storages],
    }


def difference_record(compared: Comparison) -> DifferenceRecord:
    """Return peaks and sites, largest change first."""
    return {
        "device": compared.device,
        "old_peak_bytes": compared.old_peak_bytes,
        "new_peak_bytes": compared.new_peak_bytes,
        "sites": compared.sites.reset_index().to_dict("records"),
    }


def plan_record(plan: Plan, replayed: Replayed | None = None) -> PlanRecord:
    """Return the figures of a plan, and of its execution where it was executed."""
    return {
        "program_peak_increase_bytes": plan.program_peak_increase_bytes,
        "peak_increase_bytes": plan.peak_increase_bytes,
        "lower_bound_bytes": plan.lower_bound_bytes,
        "budget_bytes": plan.budget_bytes,
        "extra_cost_ratio": plan.extra_cost_ratio,
        "extra_time_ratio": plan.extra_time_ratio,
        "moved_bytes": plan.moved_bytes,
        "replay": None if replayed is None else _replay(replayed),
    }


def _replay(replayed: Replayed) -> ReplayRecord:
    return {
        "peak_increase_bytes": replayed.peak_increase_bytes,
        "planned_bytes": replayed.planned_bytes,
        "identical": replayed.identical,
        "num_checked": replayed.num_checked,
        "max_abs_diff": replayed.max_abs_diff,
        "synthetic": replayed.synthetic,
        "duration_s": replayed.duration_s,
    }
