"""The sequences of runs that a compiled callable makes: the plan of each, and its measurements."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from memwatch.planner import BudgetError
from memwatch.replay.episode import kept_bytes, outside_bytes
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Collection

    from memwatch.replay.episode import Run
    from memwatch.replay.measure import Stretch
    from memwatch.replay.step_model import GraphRun, Orders
    from memwatch.replay.traced_graph import TracedGraph

_MOST_IDLE: Final = 8
"""Measured episodes without news, after which memwatch stops to measure every episode for the sake of a plan whose
sequence does not run any more. A guess."""

Signature = tuple[tuple[int, int], ...]
"""Identifies a sequence: for each run the number of its graph, and how many runs of that graph came before it."""


def signature_of(runs: list[Run]) -> Signature:
    """Return the signature of a sequence."""
    return tuple([(run.graph.number, run.turn) for run in runs])


@dataclass(eq=False)
class KnownSequence:
    """The plan and the measurements of one sequence of runs.

    Attributes:
        runs: the runs of its last measured episode.
        orders: the current orders of its graphs.
        outside_bytes: for each run, the bytes that the code after its forward allocated.
        kept_bytes: for each run, the bytes that this code kept while the next forward ran.
        unmodelled_bytes: how much the measured peak exceeded the planned one.
        num_over_budget: how many measured steps exceeded the budget.
        has_run: whether the sequence ever ran.
        is_settled: whether its plan was measured and is accepted.
        has_new_measurements: whether a measured step has shown figures that are newer than the orders.
        is_lowest: whether its orders are the lowest known.
        error: the error of the planner that explains why all plans exceed the budget.
        is_refused: whether the program got an error because the sequence exceeds the budget.
    """

    runs: list[Run]
    orders: Orders | None = None
    outside_bytes: list[int] = field(default_factory=list)
    kept_bytes: list[int] = field(default_factory=list)
    unmodelled_bytes: int = 0
    num_over_budget: int = 0
    has_run: bool = False
    is_settled: bool = False
    has_new_measurements: bool = False
    is_lowest: bool = False
    error: BudgetError | None = None
    is_refused: bool = False

    @property
    def is_evaluation(self) -> bool:
        """Whether the sequence has no backward: an evaluation, or the step of an optimizer."""
        return all(run.graph.is_evaluation for run in self.runs)

    @property
    def is_update(self) -> bool:
        """Whether the sequence is the step of an optimizer, which runs while all gradients are alive."""
        return all(run.graph.is_update for run in self.runs)

    def as_runs(self, *, outputs_released: bool) -> list[GraphRun]:
        """Return the runs as parts of a step.

        Args:
            outputs_released: whether to assume that the program drops all outputs before the backward.
        """
        outside = self.outside_bytes or [0] * len(self.runs)
        kept = self.kept_bytes or [0] * len(self.runs)
        return [
            dataclasses.replace(
                run.graph.as_run(),
                inputs=run.inputs,
                outputs=run.outputs,
                released=run.graph.outputs if outputs_released else run.released,
                outside_bytes=nbytes,
                kept_bytes=staying,
            )
            for run, nbytes, staying in zip(self.runs, outside, kept, strict=True)
        ]

    def budget_error(
        self, budget_bytes: int, measured_bytes: int | None, options: Collection[str]
    ) -> BudgetError:
        """Return the error that says why no plan keeps the budget. It is the planner's own error where that applies."""
        assert self.orders is not None
        if self.error is not None and measured_bytes is None and not self.unmodelled_bytes:
            return self.error.for_options(options)
        taken = measured_bytes or self.orders.peak_increase_bytes
        return BudgetError(
            f"no plan fits {format_bytes(budget_bytes)}: a step with the lowest plan takes {format_bytes(taken)}",
            self.error.best if self.error is not None else None,
            self.orders.peak_increase_bytes,
        )

    def scale(self, factor: float) -> None:
        """Scale the measurements for larger inputs, and start over with the plan."""
        self.num_over_budget = 0
        self.is_settled = False
        self.is_refused = False
        self.outside_bytes = [round(factor * nbytes) for nbytes in self.outside_bytes]
        self.kept_bytes = [round(factor * nbytes) for nbytes in self.kept_bytes]
        self.unmodelled_bytes = round(factor * self.unmodelled_bytes)

    def add_measurement(self, runs: list[Run], stretches: list[Stretch]) -> None:
        """Add the figures of a measured episode of this sequence."""
        known = [run.released for run in self.runs], self.outside_bytes, self.kept_bytes
        for run, before in zip(runs, self.runs, strict=True):
            run.released |= before.released
        self.runs = runs
        self.outside_bytes = outside_bytes(stretches, len(runs), self.outside_bytes)
        self.kept_bytes = kept_bytes(stretches, len(runs), self.kept_bytes)
        self.has_new_measurements |= known != (
            [run.released for run in runs],
            self.outside_bytes,
            self.kept_bytes,
        )


class KnownSequences(dict[Signature, KnownSequence]):
    """All sequences of a compiled callable.

    Attributes:
        unlearned: sequences that ran while nothing was recorded. They are recorded when they run again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unlearned: set[Signature] = set()
        self._num_idle = 0
        self._settled: frozenset[TracedGraph] | None = None
        self._has_refused = False

    @property
    def must_measure(self) -> bool:
        """Whether a plan that is in use was not measured yet."""
        return self._num_idle < _MOST_IDLE and any(
            one.has_run and not one.is_settled for one in self.values()
        )

    def is_settled(self, graph: TracedGraph) -> bool:
        """Return True if a graph is known and nothing is left to measure. Every step calls this."""
        if self._settled is None:
            is_quiet = not self.must_measure and not self.unlearned
            seen = (run.graph for one in self.values() if one.has_run for run in one.runs)
            self._settled = frozenset(seen) if is_quiet else None
        return self._settled is not None and graph in self._settled

    def refuse(self, sequence: KnownSequence) -> None:
        """Mark a sequence that exceeds the budget, so that its next call raises."""
        sequence.is_refused = True
        self._has_refused = True

    def find_refused(self, runs: list[Run]) -> KnownSequence | None:
        """Return a refused sequence if all known sequences that begin with these runs are refused."""
        if not self._has_refused:
            return None
        begun = signature_of(runs)
        found = [one for signature, one in self.items() if signature[: len(begun)] == begun]
        concerned = [one for one in found if one.has_run or one.is_refused]
        return concerned[0] if concerned and all(one.is_refused for one in concerned) else None

    def learn_next_time(self, signature: Signature) -> None:
        """Record this unknown sequence when it runs again."""
        self.unlearned.add(signature)
        self._settled = None

    def has_run(self, graph: TracedGraph) -> bool:
        """Return True if a graph has run in a known sequence."""
        return any(one.has_run and any(run.graph is graph for run in one.runs) for one in self.values())

    def with_graph(self, graph: TracedGraph) -> list[KnownSequence]:
        """Return the sequences that run a graph."""
        return [one for one in self.values() if any(run.graph is graph for run in one.runs)]

    def note_end(self, signature: Signature, *, is_measured: bool) -> None:
        """Record that a sequence has ended."""
        sequence = self[signature]
        self._num_idle = self._num_idle + 1 if is_measured and sequence.is_settled else 0
        sequence.has_run = True
        self._settled = None
        self.unlearned.discard(signature)

    def note_plan(self, sequence: KnownSequence) -> None:
        """Record that a sequence has a new plan, which must be measured."""
        sequence.is_settled = False
        self._settled = None
        self._num_idle = 0
