"""The figures of a plan and of its replay, and the phrases that go with them, for the terminal and the page.

The differences between the plan and the program are listed by module: recomputed ops, reordered ops, moved buffers.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
import pandas as pd

from memwatch.analysis.tables import TEXT
from memwatch.errors import MemwatchError
from memwatch.planner.peak import StepKind, program_peak, simulate
from memwatch.sizes import format_bytes
from memwatch.words.places import short_place
from memwatch.words.processes import counted
from memwatch.words.storages import short_op

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

    from memwatch.analysis.reading import DeviceReading
    from memwatch.planner.graph import Graph, Name
    from memwatch.planner.plan import Plan

BINS: Final = 2000
"""Points of the curve of a plan: more than the pixels of a wide screen. A guess."""
NONE: Final = -1
"""Step of a curve that has ended."""
_NUMBER: Final = re.compile(r"(?<![^.])\d+(?![^.])")
_OPS_NAMED: Final = 4
"""Ops that one line names. A guess."""


class Replayed(Protocol):
    """The part of a replay's result that reports show."""

    @property
    def peak_increase_bytes(self) -> int:
        """Measured peak increase, bytes."""

    @property
    def planned_bytes(self) -> int:
        """Peak increase that the plan predicted, bytes."""

    @property
    def identical(self) -> bool | None:
        """Whether the results are bitwise equal. None if there is nothing to compare."""

    @property
    def max_abs_diff(self) -> float:
        """Largest absolute difference of any element."""

    @property
    def tolerance(self) -> float:
        """Largest difference between two runs of the program itself."""

    @property
    def duration_s(self) -> float:
        """Time the run took, seconds."""

    @property
    def num_checked(self) -> int:
        """How many storages were compared."""

    @property
    def synthetic(self) -> bool:
        """Whether the inputs were made up."""


class PlanMismatchError(MemwatchError):
    """The result of a replay was passed with a plan that it does not belong to."""


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """Peak increases of program and plan, and their lower bound, in bytes. The plan's cost, in FLOPs and in time."""

    program_bytes: int
    plan_bytes: int
    bound_bytes: int
    budget_bytes: int | None
    extra_cost_ratio: float
    moved_bytes: int
    extra_time_ratio: float | None = None

    @classmethod
    def of(cls, plan: Plan) -> PlanFigures:
        """Return the figures of a plan."""
        return cls(
            plan.program_peak_increase_bytes,
            plan.peak_increase_bytes,
            plan.lower_bound_bytes,
            plan.budget_bytes,
            plan.extra_cost_ratio,
            plan.moved_bytes,
            plan.extra_time_ratio,
        )

    @property
    def share_ratio(self) -> float:
        """The plan's peak increase as a share of the program's."""
        return self.plan_bytes / self.program_bytes if self.program_bytes else 1.0

    @property
    def gap_bytes(self) -> int:
        """Bytes by which the plan is above the lower bound."""
        return self.plan_bytes - self.bound_bytes

    @property
    def only_orders(self) -> bool:
        """Whether the plan may only change the order of the ops: nobody gave it a budget."""
        return self.budget_bytes is None

    @property
    def gap_words(self) -> str:
        """The gap as a phrase."""
        if not self.gap_bytes:
            lowest = (
                "no other order of the ops has a lower peak"
                if self.only_orders
                else "this is the lowest plan"
            )
            return f"none, {lowest}"
        share = f" ({100 * self.gap_bytes / self.bound_bytes:.1f} % of the bound)" if self.bound_bytes else ""
        return f"{format_bytes(self.gap_bytes)}{share}"


def check_belongs(plan: Plan, replayed: Replayed) -> None:
    """Raise `PlanMismatchError` unless the result belongs to this plan."""
    if replayed.planned_bytes != plan.peak_increase_bytes:
        raise PlanMismatchError(
            f"the result is of another plan, with a peak increase of {format_bytes(replayed.planned_bytes)}; "
            f"this plan has {format_bytes(plan.peak_increase_bytes)}; replay this plan and pass its result"
        )


def peak_words(replayed: Replayed) -> str:
    """Return a phrase that compares the measured peak with the predicted one."""
    more = replayed.peak_increase_bytes - replayed.planned_bytes
    if not more:
        return "as planned, to the byte"
    return f"{format_bytes(abs(more))} {'above' if more > 0 else 'below'} the plan"


def check_words(replayed: Replayed) -> str:
    """Return a phrase about the comparison of the results."""
    if replayed.identical is None:
        return "made-up inputs of the recorded shapes, nothing to compare"
    if replayed.identical:
        return f"{counted(replayed.num_checked, 'storage')} bitwise equal"
    own = f"; two runs of the program differ by {replayed.tolerance:g}" if replayed.tolerance else ""
    return f"not identical: largest difference {replayed.max_abs_diff:g}{own}"


def plan_curves(plan: Plan, places: Places, bins: int = BINS) -> pd.DataFrame | None:
    """Return the live bytes of program and plan during each step.

    Bytes that are live before the first step are left out.

    Args:
        plan: the plan.
        places: names of the ops.
        bins: the most rows. If there are more steps, each row stands for several steps and shows the highest of them.

    Returns:
        A frame with the step, its live bytes and its action, for the program and for the plan. None for a plan
        that was read from a file, because the file does not hold the program.
    """
    graph = plan.graph
    if graph is None:
        return None
    before = program_peak(graph).live_bytes - graph.baseline_bytes
    after = simulate(graph, plan.schedule).live_bytes - graph.baseline_bytes
    width = max(1, -(-max(len(before), len(after)) // bins))
    rows = -(-max(len(before), len(after)) // width)
    program_step, plan_step = _highest(before, width, rows), _highest(after, width, rows)
    plan_words = _PlanWords(plan, graph, places)
    curves: pd.DataFrame = pd.DataFrame(
        {
            "at": np.arange(rows, dtype=np.int64) * width,
            "program_step": program_step,
            "program_bytes": _at(before, program_step),
            "program_what": pd.Series(
                [str(places.of(graph.op_names[step])) if step >= 0 else "" for step in program_step.tolist()],
                dtype=TEXT,
            ),
            "plan_step": plan_step,
            "plan_bytes": _at(after, plan_step),
            "plan_what": pd.Series([plan_words(step) for step in plan_step.tolist()], dtype=TEXT),
        }
    )
    return curves


class _PlanWords:
    """Describes the steps of a plan."""

    def __init__(self, plan: Plan, graph: Graph, places: Places) -> None:
        self._schedule, self._graph, self._places = plan.schedule, graph, places
        self._copies = plan.schedule.copies()

    def __call__(self, step: int) -> str:
        if step < 0:
            return ""
        kind, index = int(self._schedule.kind[step]), int(self._schedule.index[step])
        if kind != StepKind.COMPUTE:
            return "moves a buffer out" if kind == StepKind.OFFLOAD else "moves a buffer back"
        place = self._places.of(self._graph.op_names[index])
        return f"{place}, computed again" if self._copies[step] else str(place)


def _highest(live: NDArray[np.int64], width: int, rows: int) -> NDArray[np.int64]:
    """Return for each `width` steps in a row the first step with the most live bytes; NONE beyond the last step."""
    lowest = np.iinfo(np.int64).min
    padded = np.full(rows * width, lowest, dtype=np.int64)
    padded[: len(live)] = live
    step = padded.reshape(rows, width).argmax(axis=1) + np.arange(rows) * width
    return np.where(step < len(live), step, NONE)


def _at(live: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(step >= 0, live[np.maximum(step, 0)] if len(live) else 0, 0)


class Place(NamedTuple):
    """One op: its name, its module and its phase, empty where unknown."""

    op: str
    module: str
    phase: str
    line: str = ""

    @property
    def where(self) -> str:
        """The module, or the line of the program for an op outside of modules."""
        return self.module or self.line

    def __str__(self) -> str:
        """The place as a phrase, such as `bmm in the backward of blocks.0`."""
        phase = f" in the {self.phase}" if self.phase not in ("", "forward") else ""
        return f"{self.op}{phase} of {self.module}" if self.module else f"{self.op}{phase}"


class Places:
    """The places of a reading's ops; without a reading an op has the name that the graph gives it."""

    def __init__(self, reading: DeviceReading | None = None) -> None:
        self._known: dict[Hashable, Place] = {}
        if reading is not None:
            ops = reading.ops
            columns = (ops[name].astype(object).tolist() for name in ("name", "module", "phase", "own_line"))
            self._known = {
                op: Place(short_op(name), module, phase, short_place(line))
                for op, name, module, phase, line in zip(ops.index.tolist(), *columns, strict=True)
            }

    def of(self, op: Hashable) -> Place:
        """Return the place of an op."""
        return self._known.get(op) or Place(str(op), "", "")


@dataclass
class ModuleMoves:
    """The moves of a plan in one module, or in several modules that the plan treats alike.

    Attributes:
        modules: qualified names. An op outside of all modules has its line instead, or "" if the line is unknown.
        in_module: whether `modules` are names of modules.
        recomputed: op -> number of recomputes, summed over these modules.
        cost_ratio: cost of the recomputes as a share of the program's cost. None if the plan has no graph.
        moved: number of buffers that are moved out and back.
        moved_bytes: bytes that are moved.
        earlier, later: number of ops that run earlier or later than in the program.
        steps: each move in words, in the order of the plan.
    """

    modules: list[str]
    in_module: bool = True
    recomputed: Counter[str] = field(default_factory=Counter)
    cost_ratio: float | None = None
    moved: int = 0
    moved_bytes: int = 0
    earlier: int = 0
    later: int = 0
    steps: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The name of one module, or the pattern that the names of several share, such as `4 x blocks.*`."""
        first = self.modules[0]
        if len(self.modules) == 1:
            return first or "(top level)"
        return f"{len(self.modules)} x {_NUMBER.sub('*', first)}"

    def words(self) -> str:
        """Return the moves in one sentence."""
        parts = []
        if self.recomputed:
            # An op that only reserves memory computes nothing. A reader looks for the ops that fill it.
            computing = Counter({op: count for op, count in self.recomputed.items() if not _reserves(op)})
            computing = computing or self.recomputed
            named = [
                op if count == 1 else f"{count} x {op}" for op, count in computing.most_common(_OPS_NAMED)
            ]
            more = ["..."] if len(computing) > _OPS_NAMED else []
            total = computing.total()
            parts.append(f"compute {_count(total, 'op')} again ({', '.join(named + more)})")
        if self.moved:
            parts.append(
                f"move {_count(self.moved, 'buffer')} out and back ({format_bytes(self.moved_bytes)})"
            )
        for count, where in ((self.earlier, "earlier"), (self.later, "later")):
            if count:
                parts.append(f"run {_count(count, 'op')} {where}")
        return "; ".join(parts)

    def _pattern(self) -> tuple[object, ...]:
        ops = tuple(sorted(self.recomputed.items()))
        return (_NUMBER.sub("*", self.modules[0]), ops, self.moved, self.earlier, self.later)

    def _join(self, other: ModuleMoves) -> None:
        self.modules += other.modules
        self.recomputed += other.recomputed
        if other.cost_ratio is not None:
            self.cost_ratio = (self.cost_ratio or 0.0) + other.cost_ratio
        self.moved += other.moved
        self.moved_bytes += other.moved_bytes
        self.earlier += other.earlier
        self.later += other.later
        self.steps += other.steps


def _reserves(op: str) -> bool:
    return op in ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")


def moves_by_module(plan: Plan, places: Places) -> list[ModuleMoves]:
    """Return the moves of a plan, the most expensive first. Modules that the plan treats alike are one entry."""
    joined: dict[tuple[object, ...], ModuleMoves] = {}
    for each in _Reader(plan, places).read().values():
        pattern = each._pattern()
        if pattern in joined:
            joined[pattern]._join(each)
        else:
            joined[pattern] = each
    return sorted(
        joined.values(),
        key=lambda each: (-(each.cost_ratio or 0.0), -each.recomputed.total(), -each.moved_bytes, each.label),
    )


class _Reader:
    """Reads the steps of a plan and collects the moves of each module."""

    def __init__(self, plan: Plan, places: Places) -> None:
        self._plan, self._places = plan, places
        self._moves: dict[str, ModuleMoves] = {}

    def read(self) -> dict[str, ModuleMoves]:
        names = iter(self._plan.order)
        copies = self._plan.schedule.copies().tolist()
        steps = [
            (kind, target, copy, next(names) if kind == StepKind.COMPUTE else None)
            for (kind, target), copy in zip(self._plan.schedule, copies, strict=True)
        ]
        following = _following([name if not copy else None for _, _, copy, name in steps])
        for (kind, target, copy, name), after in zip(steps, following, strict=True):
            before = "at the end" if after is None else f"before {self._places.of(after)}"
            if name is None:
                self._move(kind, target, before)
            elif copy:
                self._recompute(target, name, before)
        self._reorder([(target, name) for _, target, copy, name in steps if name is not None and not copy])
        return self._moves

    def _recompute(self, op: int, name: Name, before: str) -> None:
        place = self._places.of(name)
        moves, graph = self._of(place), self._plan.graph
        moves.recomputed[place.op] += 1
        if graph is not None and graph.total_cost:
            moves.cost_ratio = (moves.cost_ratio or 0.0) + float(graph.op_cost[op]) / graph.total_cost
        moves.steps.append(f"compute {place} again {before}")

    def _move(self, kind: StepKind, buffer: int, before: str) -> None:
        graph = self._plan.graph
        producer = -1 if graph is None else int(graph.buffer_producer[buffer])
        nbytes = 0 if graph is None else int(graph.buffer_nbytes[buffer])
        place = None if graph is None or producer < 0 else self._places.of(graph.op_names[producer])
        moves = self._of(Place("", "", "") if place is None else place)
        moves.moved += kind == StepKind.OFFLOAD
        moves.moved_bytes += nbytes
        what = f"buffer {buffer}" if place is None else f"the result of {place}"
        verb = "out" if kind == StepKind.OFFLOAD else "back"
        moves.steps.append(f"move {what} ({format_bytes(nbytes)}) {verb} {before}")

    def _reorder(self, order: list[tuple[int, Name]]) -> None:
        kept = _in_place([op for op, _ in order])
        for position, (op, name) in enumerate(order):
            if op in kept:
                continue
            place = self._places.of(name)
            moves = self._of(place)
            where = "earlier" if position < op else "later"
            moves.earlier += where == "earlier"
            moves.later += where == "later"
            after = f", after {self._places.of(order[position - 1][1])}" if position else ", first"
            moves.steps.append(f"run {place} {where}{after}")

    def _of(self, place: Place) -> ModuleMoves:
        return self._moves.setdefault(place.where, ModuleMoves([place.where], in_module=bool(place.module)))


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _following(names: list[Name | None]) -> list[Name | None]:
    """Return for each step the first later name that is not None: the next op that is no recompute; None at the end."""
    found: list[Name | None] = []
    after: Name | None = None
    for name in reversed(names):
        found.append(after)
        after = name if name is not None else after
    return found[::-1]


def _in_place(order: list[int]) -> set[int]:
    """Return the largest set of ops that kept their order: a longest increasing subsequence."""
    tops: list[int] = []  # patience sorting: the top card of each pile
    before: dict[int, int] = {}
    for number in order:
        pile = bisect_left(tops, number)
        if pile:
            before[number] = tops[pile - 1]
        tops[pile : pile + 1] = [number]
    kept = set()
    number = tops[-1] if tops else -1
    while tops and number >= 0:
        kept.add(number)
        number = before.get(number, -1)
    return kept


def checkpoints_apply(moves: Sequence[ModuleMoves]) -> bool:
    """Return whether `apply_plan` can use a plan: the plan recomputes at least one op of a module."""
    return any(each.recomputed and each.in_module for each in moves)


def compile_call(plan: Plan) -> str:
    """Return the call that compiles a model within the budget of a plan."""
    budget = "" if plan.budget_bytes is None else f', options={{"budget": {plan.budget_bytes}}}'
    return f'torch.compile(model, backend="memwatch"{budget})'
