"""Define the plan: a schedule of a program with its peak and its cost, its text, its file, and `BudgetError`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memwatch.errors import MemwatchError
from memwatch.output_files import write_whole
from memwatch.plan_training import Turns, turns_of
from memwatch.planner.peak import Schedule, StepKind
from memwatch.sizes import format_bytes
from memwatch.text import JsonError, ShownAsText, read_json

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from contextlib import AbstractContextManager
    from os import PathLike

    from memwatch.planner.graph import Graph, Name


class BudgetError(MemwatchError):
    """No plan that fits the budget was found.

    Attributes:
        best: the plan with the lowest peak that was found. From `fit`, the measurement of the way with the lowest
            peak; None if no way could run.
        bound_bytes: peak increase that no plan can go below (bytes). From `fit`, the live bytes before the step.
        reasons: why no plan fits. From `fit`, the limit and the lowest peak, and then what takes the memory.
        reason: all reasons in one text.
        options: the options that would allow a lower peak. The message advises to use them.
    """

    def __init__(
        self,
        reason: str | tuple[str, ...],
        best: object,
        bound_bytes: int,
        options: tuple[str, ...] = (),
        advice: str = "",
    ) -> None:
        self.reasons = (reason,) if isinstance(reason, str) else reason
        self.reason = "; ".join(self.reasons)
        super().__init__("; ".join(part for part in (self.reason, advice or _advice(options)) if part))
        self.best = best
        self.bound_bytes = bound_bytes
        self.options = options
        self._given_advice = advice

    def for_options(self, existing: Collection[str]) -> BudgetError:
        """Return a new error that advises only options that the caller has."""
        options = tuple(each for each in self.options if each in existing)
        return BudgetError(self.reasons, self.best, self.bound_bytes, options, self._given_advice)

    def because(self, reason: str) -> BudgetError:
        """Return a new error with one more reason; this error if the reason is empty."""
        if not reason:
            return self
        return BudgetError(
            (*self.reasons, reason), self.best, self.bound_bytes, self.options, self._given_advice
        )


def _advice(options: tuple[str, ...]) -> str:
    return f"allow {' or '.join(options)}" if options else ""


_SHOWN_MOVES = 12  # sentences in the text of a plan; a guess
# fields that go to the file as they are
_FIGURES = (
    "peak_increase_bytes",
    "program_peak_increase_bytes",
    "lower_bound_bytes",
    "extra_cost_ratio",
    "moved_bytes",
    "budget_bytes",
    "fingerprint",
)
_LATER_FIGURES = ("extra_time_ratio",)  # fields that files of older memwatch lack


@dataclass(frozen=True, eq=False)
class Plan(ShownAsText):
    """A schedule, its peak and its cost.

    Attributes:
        schedule: the steps.
        order: names of the ops in the order they are computed; a repeated name is a recompute.
        moves: sentences about the differences between the plan and the program.
        peak_increase_bytes: peak of the plan above the bytes that are live before the first op.
        program_peak_increase_bytes: the same figure of the program as it was recorded.
        lower_bound_bytes: peak increase that no plan with the same options can go below.
        extra_cost_ratio: cost of recomputes and moves, as a share of the program's cost.
        moved_bytes: bytes that are moved out and back.
        budget_bytes: peak increase that was allowed; None for the lowest peak.
        fingerprint: hash of the program. A plan fits this program only.
        graph: the program; None for a plan that was loaded from a file.
        step: the recorded training step of a loaded plan, to train with it; otherwise None.
        extra_time_ratio: recorded time of the ops that run again, as a share of the time of all ops; None if the ops
            were not timed. One recording is noisy, so plans are compared by their cost.
        notes: sentences about how the plan was made, for example without the compiled planner.
    """

    schedule: Schedule
    order: list[Name]
    moves: list[str]
    peak_increase_bytes: int
    program_peak_increase_bytes: int
    lower_bound_bytes: int
    extra_cost_ratio: float
    moved_bytes: int
    budget_bytes: int | None
    fingerprint: str
    graph: Graph | None = field(default=None, repr=False)
    extra_time_ratio: float | None = None
    step: Mapping[str, Any] | None = field(default=None, repr=False)
    notes: list[str] = field(default_factory=list)

    def checkpoint_contexts(
        self, *, strict: bool = False
    ) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """Return the two contexts with which torch checkpoints one region within the plan's budget.

        Pass the method itself: ``checkpoint(block, x, use_reentrant=False,
        context_fn=plan.checkpoint_contexts)``. The peak is never above the peak of plain checkpoints of the same
        regions. Within this peak, memwatch saves the results that cost most to compute again. The backward computes
        the rest of the region again.

        A program may be recorded with its checkpoints or without them. If it was recorded without them, the first
        pass runs plain checkpoints and shows the regions, and later passes save results. A region that was not
        recorded is computed again as a whole. If checkpoints of the regions exceed the budget, a warning has both
        figures. The first pass whose regions are known is measured. If it takes more than the plan says, a warning
        has both figures. Checkpoints cannot reorder ops or move buffers, so these parts of a plan have no effect.

        Args:
            strict: whether these warnings are errors: ``context_fn=partial(plan.checkpoint_contexts, strict=True)``.

        Raises:
            BudgetError: with `strict`, checkpoints of the regions are above the budget.
            MemwatchError: the plan was not made from a recorded training step.
        """
        return self._turns.contexts(strict=strict)

    @property
    def checkpoint_peak_bytes(self) -> int | None:
        """Peak increase of the recorded block with `checkpoint_contexts`; None before the regions are known."""
        choice = self._turns.choice
        return None if choice is None else int(choice.peak_bytes)

    @cached_property
    def _turns(self) -> Turns:
        return turns_of(self)

    def step_content(self) -> Mapping[str, Any] | None:
        """Return the recorded training step as plain data; None for the plan of a `Graph`."""
        return self.step

    def __str__(self) -> str:
        lines = [self._peak_line(), self._cost_line()]
        lines += [f"  {move}" for move in self.moves[:_SHOWN_MOVES]]
        if len(self.moves) > _SHOWN_MOVES:
            rest = len(self.moves) - _SHOWN_MOVES
            lines.append(f"  and {rest} more move{'' if rest == 1 else 's'}")
        lines += self.notes
        return "\n".join(lines)

    def _peak_line(self) -> str:
        peak = self.peak_increase_bytes
        program = self.program_peak_increase_bytes
        share = f" ({100 * peak / program:.0f} % of the program's)" if program else ""
        budget = f"budget {format_bytes(self.budget_bytes)}: " if self.budget_bytes is not None else ""
        return (
            f"{budget}peak increase {format_bytes(peak)}{share}, program {format_bytes(program)}, "
            f"lower bound {format_bytes(self.lower_bound_bytes)}"
        )

    def _cost_line(self) -> str:
        moved = f", {format_bytes(self.moved_bytes)} moved out and back" if self.moved_bytes else ""
        timed = self.extra_time_ratio
        time = "" if timed is None else f" ({100 * timed:.1f} % of the measured time)"
        return f"extra cost {100 * self.extra_cost_ratio:.1f} % of the program's work{time}{moved}"

    def save(self, path: str | PathLike[str], *, force: bool = True) -> None:
        """Write the plan as JSON; `load_plan` reads it, to train with it or to replay it beside its recording.

        Args:
            path: the file, which is written whole or not at all.
            force: whether an existing file may be replaced.

        Raises:
            PlanFileError: an op has a name that is neither text nor a number.
            OutputError: the file cannot be written.
        """
        for name in self.order:
            if not isinstance(name, (str, int)):
                raise PlanFileError(
                    f"op {name!r} has a name that JSON cannot hold; name ops by text or number"
                )
        content = {name: getattr(self, name) for name in _FIGURES + _LATER_FIGURES}
        content |= {"order": self.order, "moves": self.moves, "notes": self.notes}
        content |= {"kind": self.schedule.kind.tolist(), "index": self.schedule.index.tolist()}
        content["step"] = self.step_content()
        _write(path, content, force=force)


def load_plan(path: str | PathLike[str]) -> Plan:
    """Return the plan that `Plan.save` wrote, ready to train with. Its `graph` is None.

    Raises:
        PlanFileError: the file does not contain a plan, or a newer memwatch wrote it.
    """
    content = _read(path)
    try:
        kind = np.array(content["kind"], dtype=np.int8)
        schedule = Schedule(kind, np.array(content["index"], dtype=np.int64))
        figures = {name: content[name] for name in _FIGURES}
        figures |= {name: content.get(name) for name in _LATER_FIGURES}
        return Plan(
            schedule,
            list(content["order"]),
            list(content["moves"]),
            **figures,
            step=content.get("step"),
            notes=list(map(str, content.get("notes", ()))),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise PlanFileError(f"{path} is a damaged plan ({error!r}); write it again") from None


_FORMAT = "memwatch-plan"
_VERSION = 2  # of the file's format
_READABLE = (1, _VERSION)  # version 1 has no training step
_HOW_TO_WRITE = "write one with `memwatch plan -o FILE CAPTURE` or plan.save(path)"


class PlanFileError(MemwatchError, ValueError):
    """A plan cannot be written, or a file does not contain a plan."""


def _write(path: str | PathLike[str], content: dict[str, Any], *, force: bool) -> None:
    """Write the content of a plan to a file.

    Args:
        path: the file.
        content: the values, which JSON can represent.
        force: whether an existing file may be replaced.

    Raises:
        OutputError: the file cannot be written.
    """
    header = {"format": _FORMAT, "version": _VERSION}
    write_whole(Path(path), json.dumps(header | content), force=force)


def _read(path: str | PathLike[str]) -> dict[str, Any]:
    """Return the content of a file that `_write` wrote.

    Raises:
        PlanFileError: the file is missing, holds no plan, or comes from a newer memwatch.
    """
    if not Path(path).is_file():
        raise PlanFileError(f"{path} is not a file; {_HOW_TO_WRITE}")
    try:
        content = read_json(Path(path).read_bytes())
    except JsonError:
        content = None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise PlanFileError(f"{path} is not a plan; {_HOW_TO_WRITE}")
    if content.get("version") not in _READABLE:
        raise PlanFileError(
            f"{path} has plan format {content.get('version')!r}, and this memwatch reads formats up to {_VERSION}; "
            "plan again"
        )
    return content


def describe_moves(graph: Graph, schedule: Schedule) -> list[str]:
    """Return one line per difference between a schedule and the program, in the order of the steps."""
    steps = list(schedule)
    copies = schedule.copies().tolist()
    following = _next_first_runs(graph, schedule)
    total = graph.total_cost
    # a share, because only the maker of a graph knows the unit of its costs
    shares = 100 * graph.op_cost / total if total else None
    lines = []
    for position, (kind, target) in enumerate(steps):
        before = following[position]
        where = f"before {before}" if before else "at the end"
        if kind == StepKind.COMPUTE and copies[position]:
            cost = "" if shares is None else f" ({shares[target]:.1f} % of the program's work)"
            lines.append(f"recompute {graph.op_names[target]}{cost} {where}")
        elif kind != StepKind.COMPUTE:
            size = format_bytes(int(graph.buffer_nbytes[target]))
            verb = "offload" if kind == StepKind.OFFLOAD else "reload"
            lines.append(f"{verb} {graph.buffer_names[target]} ({size}) {where}")
    first_runs = schedule.ops[schedule.copies()[schedule.kind == StepKind.COMPUTE] == 0]
    # The most ops that can keep their order form the longest increasing subsequence. Only the others change place.
    displaced = len(first_runs) - _longest_increasing(first_runs.tolist())
    if displaced:
        lines.insert(0, f"run {displaced} of {graph.num_ops} ops at another place")
    return lines


def _next_first_runs(graph: Graph, schedule: Schedule) -> list[object]:
    """Return for every step the name of the next op that runs for the first time, None at the end."""
    following: list[object] = []
    name: object = None
    copies = schedule.copies()
    for position in range(len(schedule) - 1, -1, -1):
        following.append(name)
        if schedule.kind[position] == StepKind.COMPUTE and copies[position] == 0:
            name = graph.op_names[schedule.index[position]]
    return following[::-1]


def _longest_increasing(numbers: list[int]) -> int:
    """Return the length of the longest increasing subsequence, by patience sorting."""
    # tails[k] is the smallest number that an increasing subsequence of length k + 1 can end with
    tails = np.full(len(numbers) + 1, np.iinfo(np.int64).max)
    length = 0
    for number in numbers:
        place = int(np.searchsorted(tails[:length], number))
        tails[place] = number
        length = max(length, place + 1)
    return length
