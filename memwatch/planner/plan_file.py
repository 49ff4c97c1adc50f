"""Plans on disk: JSON, tied to their program by a fingerprint."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from memwatch.errors import MemwatchError
from memwatch.planner.plan import Plan
from memwatch.planner.schedule import Schedule

if TYPE_CHECKING:
    from os import PathLike

    from memwatch.planner.graph import Graph

_FORMAT, _VERSION = "memwatch-plan", 1
_FIGURES = (
    "peak_increase_bytes", "program_peak_increase_bytes", "lower_bound_bytes", "extra_cost_ratio",
    "moved_bytes", "budget_bytes", "fingerprint",
)  # fmt: skip


class PlanFileError(MemwatchError, ValueError):
    """A plan that cannot be written, or a file that holds no plan."""


def fingerprint(graph: Graph) -> str:
    """Hash what a plan depends on: ops, buffers, sizes, who uses what; costs may differ."""
    digest = hashlib.sha256()
    digest.update(repr(graph.op_names).encode())
    arrays = (
        graph.op_effect, graph.buffer_nbytes, graph.buffer_producer, graph.buffer_pinned,
        graph.buffer_freeable, graph.reads.indptr, graph.reads.indices, graph.makes.indptr,
        graph.makes.indices, graph.writes.indptr, graph.writes.indices,
    )  # fmt: skip
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes() + b"|")
    return digest.hexdigest()


def save_plan(plan: Plan, path: str | PathLike[str]) -> None:
    """Write a plan as JSON.

    Raises:
        PlanFileError: an op has a name that is neither text nor a number.
    """
    for name in plan.order:
        if not isinstance(name, (str, int)):
            raise PlanFileError(f"op {name!r} has a name that JSON cannot hold; name ops by text or number")
    content = {"format": _FORMAT, "version": _VERSION}
    content |= {name: getattr(plan, name) for name in _FIGURES}
    content |= {"order": plan.order, "moves": plan.moves}
    content |= {"kind": plan.schedule.kind.tolist(), "index": plan.schedule.index.tolist()}
    Path(path).write_text(json.dumps(content), encoding="utf-8")


def load_plan(path: str | PathLike[str]) -> Plan:
    """Read a plan that `Plan.save` wrote; its `graph` is None.

    Raises:
        PlanFileError: the file holds no plan, or one of a newer memwatch.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise PlanFileError(f"{path} is not a plan: {error}") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise PlanFileError(f"{path} is not a plan; write one with plan.save(path)")
    if content.get("version") != _VERSION:
        raise PlanFileError(
            f"{path} has plan format {content.get('version')!r}; this memwatch reads {_VERSION}, plan again"
        )
    try:
        kind = np.array(content["kind"], dtype=np.int8)
        schedule = Schedule(kind, np.array(content["index"], dtype=np.int64))
        figures = {name: content[name] for name in _FIGURES}
        return Plan(schedule, list(content["order"]), list(content["moves"]), **figures)
    except (KeyError, TypeError, ValueError) as error:
        raise PlanFileError(f"{path} is a damaged plan ({error!r}); write it again") from None
