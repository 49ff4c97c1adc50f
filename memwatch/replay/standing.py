"""What is known of each sequence of runs that a compiled callable makes, and whether there is more to learn."""

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
"""A plan whose sequence does not come again in so many measured episodes is no longer waited for."""

Signature = tuple[tuple[int, int], ...]
"""A sequence: for each run the number of its graph, and which run of that graph it is."""


def signature_of(runs: list[Run]) -> Signature:
    """Return the signature of a sequence."""
    return tuple([(run.graph.number, run.turn) for run in runs])


@dataclass(eq=False)
class Standing:
    """What is known of one sequence of runs.

    Attributes:
        runs: the runs of an episode of this kind.
        orders: how its graphs run now.
        outside_bytes: what the code after each forward took.
        kept_bytes: what it kept while the next forward ran.
        unmodelled_bytes: how much more a step took than the plan says.
        tries: how often it was measured above the budget.
        is_seen: whether it ever ran.
        is_settled: whether its plan was measured and need not be again.
        has_news: whether a measured step has shown what the orders were not planned with.
        is_lowest: whether the orders are the lowest known.
        error: why nothing fits the budget, in the planner's words.
        is_refused: whether the program was told that it cannot be run within the budget.
    """

    runs: list[Run]
    orders: Orders | None = None
    outside_bytes: list[int] = field(default_factory=list)
    kept_bytes: list[int] = field(default_factory=list)
    unmodelled_bytes: int = 0
    tries: int = 0
    is_seen: bool = False
    is_settled: bool = False
    has_news: bool = False
    is_lowest: bool = False
    error: BudgetError | None = None
    is_refused: bool = False

    @property
    def is_evaluation(self) -> bool:
        """Whether no backward belongs to it, though its graphs are given what is trained, or update it."""
        return all(run.graph.is_evaluation for run in self.runs)

    @property
    def is_update(self) -> bool:
        """Whether it is the step of an optimizer, which runs beside the gradients."""
        return all(run.graph.is_update for run in self.runs)

    def as_runs(self, *, hopes: bool) -> list[GraphRun]:
        """Return the runs as parts of a step; hopes: the program lets go of all outputs before the backward."""
        outside, kept = (each or [0] * len(self.runs) for each in (self.outside_bytes, self.kept_bytes))
        return [
            dataclasses.replace(
                run.graph.as_run(),
                inputs=run.inputs,
                outputs=run.outputs,
                released=run.graph.outputs if hopes else run.released,
                outside_bytes=nbytes,
                kept_bytes=staying,
            )
            for run, nbytes, staying in zip(self.runs, outside, kept, strict=True)
        ]

    def out_of_reach(
        self, budget_bytes: int, measured_bytes: int | None, options: Collection[str]
    ) -> BudgetError:
        """Return the error that says that the budget cannot be kept, in the planner's words where they hold."""
        assert self.orders is not None
        if self.error is not None and measured_bytes is None and not self.unmodelled_bytes:
            return self.error.for_options(options)
        taken = measured_bytes or self.orders.peak_increase_bytes
        return BudgetError(
            f"no plan fits {format_bytes(budget_bytes)}: a step with the lowest plan takes {format_bytes(taken)}",
            self.error.best if self.error is not None else None,
            self.orders.peak_increase_bytes,
        )

    def grow(self, factor: float) -> None:
        """Expect larger shapes: what was learned of smaller ones grows with them."""
        self.tries, self.is_settled, self.is_refused = 0, False, False
        self.outside_bytes = [round(factor * nbytes) for nbytes in self.outside_bytes]
        self.kept_bytes = [round(factor * nbytes) for nbytes in self.kept_bytes]
        self.unmodelled_bytes = round(factor * self.unmodelled_bytes)

    def learn(self, runs: list[Run], stretches: list[Stretch]) -> None:
        """Take what a measured episode of this kind has shown."""
        known = [run.released for run in self.runs], self.outside_bytes, self.kept_bytes
        for run, before in zip(runs, self.runs, strict=True):
            run.released |= before.released
        self.runs = runs
        self.outside_bytes = outside_bytes(stretches, len(runs), self.outside_bytes)
        self.kept_bytes = kept_bytes(stretches, len(runs), self.kept_bytes)
        self.has_news |= known != ([run.released for run in runs], self.outside_bytes, self.kept_bytes)


class Standings(dict[Signature, Standing]):
    """All sequences.

    Attributes:
        awaited: sequences of which no more is known yet than that they came.
    """

    def __init__(self) -> None:
        super().__init__()
        self.awaited: set[Signature] = set()
        self._idle = 0
        self._settled: frozenset[TracedGraph] | None = None
        self._has_refused = False

    @property
    def must_measure(self) -> bool:
        """Whether a plan in use was not measured yet."""
        return self._idle < _MOST_IDLE and any(one.is_seen and not one.is_settled for one in self.values())

    def is_settled(self, graph: TracedGraph) -> bool:
        """Return True if a graph is known, and nothing is left to measure or to learn; each step asks."""
        if self._settled is None:
            is_quiet = not self.must_measure and not self.awaited
            seen = (run.graph for one in self.values() if one.is_seen for run in one.runs)
            self._settled = frozenset(seen) if is_quiet else None
        return self._settled is not None and graph in self._settled

    def refuse(self, standing: Standing) -> None:
        """Note that a sequence cannot be run within the budget."""
        standing.is_refused = self._has_refused = True

    def refused(self, runs: list[Run]) -> Standing | None:
        """Return a refused sequence if runs have begun that, as far as is known, only become refused ones."""
        if not self._has_refused:
            return None
        begun = signature_of(runs)
        found = [one for signature, one in self.items() if signature[: len(begun)] == begun]
        concerned = [one for one in found if one.is_seen or one.is_refused]
        return concerned[0] if concerned and all(one.is_refused for one in concerned) else None

    def wait_for(self, signature: Signature) -> None:
        """Note that a sequence came of which nothing is known: when it comes again it is learned."""
        self.awaited.add(signature)
        self._settled = None

    def know(self, graph: TracedGraph) -> bool:
        """Return True if a graph has run in a sequence that is known."""
        return any(one.is_seen and any(run.graph is graph for run in one.runs) for one in self.values())

    def of_graph(self, graph: TracedGraph) -> list[Standing]:
        """Return the sequences in which a graph runs."""
        return [one for one in self.values() if any(run.graph is graph for run in one.runs)]

    def saw(self, signature: Signature, *, is_measured: bool) -> None:
        """Note that a sequence ended."""
        standing = self[signature]
        self._idle = self._idle + 1 if is_measured and standing.is_settled else 0
        standing.is_seen = True
        self._settled = None
        self.awaited.discard(signature)

    def planned(self, standing: Standing) -> None:
        """Note that a sequence runs in a new order, which is to be measured."""
        standing.is_settled = False
        self._settled = None
        self._idle = 0
