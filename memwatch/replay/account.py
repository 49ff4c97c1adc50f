"""The account of a compiled callable: one budget for all of its graphs, measured and kept.

A share of the program is a share of what eager PyTorch takes. So the first step runs as eager PyTorch does, and is
measured. Later steps run as planned. Each new plan is measured in its first step. If that step exceeds the budget, it
is planned again with the measured figures. If it still does, a warning says so, and another one tells of code before
the first graph, which no budget covers.
"""

from __future__ import annotations

import dataclasses
import logging
import warnings
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.autograd import node_of_result
from memwatch._torch.dynamo import is_resumed
from memwatch.planner import BudgetError
from memwatch.replay import episode as mark
from memwatch.replay.allowance import Allowance
from memwatch.replay.episode import Episode, Routine, Run, addresses
from memwatch.replay.measure import can_measure
from memwatch.replay.standing import Standing, Standings, signature_of
from memwatch.replay.step_planner import StandingPlanner
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.encoding.values import Value
    from memwatch.replay.options import BackendOptions
    from memwatch.replay.rewrite import Move
    from memwatch.replay.traced_graph import TracedGraph


def warn_of_uncovered(args: Sequence[Any]) -> None:
    """Warn if code of the callable that is not compiled kept something before the first graph ran."""
    if is_resumed() and any(
        isinstance(item, torch.Tensor) and node_of_result(item) is not None for item in args
    ):
        warnings.warn(
            "torch.compile, backend memwatch: code that torch.compile does not compile runs before the first graph; "
            "the budget does not cover what it keeps for the backward", stacklevel=2,
        )  # fmt: skip


_log = logging.getLogger(__name__)
_MOST_TRIES: Final = 3
_MOST_RUNS: Final = 64
"""An episode with more runs than this is a loop that keeps everything: it is not planned as one step."""

_UNMEASURED: Final = (
    "torch.compile, backend memwatch: a profiler runs, so the backend cannot measure this step, and the budget may "
    "not be kept; run the first steps outside `memwatch.profile()` and other profilers"
)


class Account:
    """Plans, measures and plans again what a compiled callable runs.

    Args:
        options: what the user asked for.
        device: device whose bytes count.
    """

    def __init__(self, options: BackendOptions, device: str) -> None:
        self._options = options
        self._device = device
        self._allowance = Allowance(options.budget, device)
        self._planner = StandingPlanner(options, device)
        self._episode: Episode | None = None
        self._routine: Routine | None = None
        self._graphs: list[TracedGraph] = []
        self._standings = Standings()
        self._is_warned = False
        self._has_trained = False
        self._is_unmeasured_told = False

    @property
    def is_kept(self) -> bool:
        """Whether there is a budget to keep."""
        return self._options.budget is not None

    @property
    def is_under_way(self) -> bool:
        """Whether a step has begun, and not ended."""
        return (now := self._routine or self._episode) is not None and now.is_pending()

    def add(self, graph: TracedGraph) -> list[str | Move]:
        """Take a graph that was just traced; return the order in which it runs at first.

        With the option `strict`, a graph that alone cannot be run within the budget is refused when it is called: an
        error of the compilation would reach the program as one of torch's.
        """
        graph.number = len(self._graphs)
        self._graphs.append(graph)
        graph.on_begin, graph.on_end = self._begins, self._ends
        run = Run(graph, 0, ())
        standing = Standing([run])
        if self._allowance.is_share:
            return self._planner.torchs_orders(standing).of_graphs[0]
        budget = self._budget_of(standing)
        orders = standing.orders = self._planner.plan(standing, budget)
        self._standings[signature_of([run])] = standing
        if self._is_above(standing):
            orders = standing.orders = self._planner.hope(standing, budget, orders)
        if self._is_above(standing):
            if self._options.strict:
                self._standings.refuse(standing)
            else:
                self._out_of_reach(standing, None)
        return orders.of_graphs[0]

    def routine(self, graph: TracedGraph, args: Sequence[Any]) -> Routine | None:
        """Return the routine if a graph that is about to run goes on with it; else the graph is to `enter`."""
        routine = self._routine
        if routine is None:
            episode = self._episode
            if episode is None or not episode.is_settled or episode.is_pending():
                return None
            self._conclude()
            routine = self._routine
        if routine is not None and routine.takes(graph) and not (graph.hints and graph.is_larger(args)):
            return routine
        if routine is not None:
            if routine.goes_on():
                self._allowance.step_goes_on()
            self._episode, self._routine = routine.as_episode(), None
        return None

    def enter(self, graph: TracedGraph, args: Sequence[Any]) -> Run:
        """Note that a graph is about to run, and choose how.

        Raises:
            BudgetError: with the option `strict`, the graph, or a larger shape, cannot be run within the budget.
        """
        if self._episode is None or not self._episode.is_pending():
            self._conclude()
            self._allowance.meet(args)
            self._episode = self._open(graph, args)
        else:
            self._allowance.meet(args)
        episode = self._episode
        turn = sum(run.graph is graph for run in episode.runs) if episode.runs else 0
        run = Run(graph, turn, addresses(args) if episode.learns else ())
        refused = self._standings.refused([*episode.runs, run])
        if refused is not None and graph.values(args) == graph.largest:
            self.failed()
            self._out_of_reach(refused, None)
        try:
            if graph.hints and not episode.is_eager:
                self._make_room(graph, args)
        except BudgetError:
            self.failed()
            raise
        graph.turn = turn
        episode.runs.append(run)
        episode.mark(mark.FORWARD)
        return run

    def runs_eagerly(self, run: Run) -> bool:
        """Return True for a run that is measured to learn what eager PyTorch takes."""
        return self._episode is not None and self._episode.is_eager and run in self._episode.runs

    def leave(self, run: Run, args: Sequence[Any], result: Value) -> None:
        """Note that a graph has run."""
        episode = self._episode
        is_settled = episode is None or episode.is_settled
        heads = run.left(args, result, None if is_settled else lambda: self._dropped(episode))
        if is_settled or episode is None or run not in episode.runs:
            return
        episode.mark(mark.LEFT)
        if episode.learns:
            run.note_outputs(result)
        if episode.is_eager:
            episode.watch(run, heads)
        if episode.is_measured and not episode.is_pending():
            self._conclude()

    def failed(self) -> None:
        """Forget the episode: a graph raised."""
        if self._episode is not None and self._episode.can_stop_here:
            self._episode.stop()
            self._episode = None

    def _dropped(self, episode: Episode | None) -> None:
        """End a measured episode of which no backward will come, as after an exception of the program's."""
        if (
            episode is not None
            and episode is self._episode
            and episode.is_measured
            and not episode.is_pending()
        ):
            self.failed()

    def _begins(self, graph: TracedGraph) -> None:
        """Note that the backward of a graph is about to run."""
        episode = self._episode
        if episode is None or episode.is_settled:
            return
        run = episode.last_waiting(graph) if episode.learns else None
        episode.mark(mark.BACKWARD)
        if run is not None:
            run.look_at_outputs()

    def _ends(self, graph: TracedGraph) -> None:
        """Note that the backward of a graph has run."""
        episode = self._episode
        if episode is not None and (run := episode.last_waiting(graph)) is not None:
            episode.note_backward(run, mark.BACKWARD)

    def _backward_returned(self) -> None:
        episode = self._episode
        if episode is None:
            return
        self._allowance.gradients_came()
        episode.mark(mark.RETURNED)
        if not episode.is_pending() and episode.can_stop_here:
            self._conclude()

    def _open(self, graph: TracedGraph, args: Sequence[Any]) -> Episode:
        if self._options.budget is None:
            return Episode()
        kept = self._allowance.kept()
        has_more = self._allowance.look(graph)
        if has_more and not self._allowance.is_share:
            self._leave_less(graph, kept)
        if not graph.hints and not has_more and self._standings.is_settled(graph):
            return Episode()
        is_known, is_larger = self._standings.know(graph), graph.is_larger(args)
        if is_known and not is_larger and not has_more and not self._standings.must_measure:
            return Episode(learns=bool(self._standings.awaited))
        if not can_measure():
            if not self._is_unmeasured_told:
                self._is_unmeasured_told = True
                warnings.warn(_UNMEASURED, stacklevel=2)
            return Episode(learns=True)
        warn_of_uncovered(args)
        is_new = has_more or is_larger or not is_known
        episode = Episode(is_eager=self._allowance.is_share and is_new, learns=True)
        if is_larger:
            self._allowance.grew(graph)
        if episode.is_eager:
            graph.grow(args)
        episode.measure(self._device, self._backward_returned)
        return episode

    def _make_room(self, graph: TracedGraph, args: Sequence[Any]) -> None:
        """Plan again for a shape that is larger than all before."""
        if not graph.is_larger(args):
            return
        before = dict(graph.largest)
        try:
            self._replan_for(self._standings.of_graph(graph), graph.grow(args))
        except BudgetError:
            graph.largest.update(before)
            raise

    def _leave_less(self, graph: TracedGraph, kept: tuple[dict[bool, int], int]) -> None:
        """Plan again for an episode that begins with more gradients of its step than any had before."""
        known = list(self._standings.values())
        updates = [one for one in known if one.is_update]
        try:
            self._replan_for(
                updates if graph.is_update else [one for one in known if not one.is_evaluation], 1.0
            )
        except BudgetError:
            self._allowance.keep(kept)
            raise

    def _replan_for(self, concerned: list[Standing], factor: float) -> None:
        """Plan sequences again whose shapes have grown by a factor, or whose budget has shrunk; all of them or none."""
        copies = [dataclasses.replace(standing) for standing in concerned]
        self._is_warned = False
        try:
            for standing in concerned:
                standing.grow(factor)
                self._replan(standing)
        except BudgetError:  # what fitted so far fits still
            for standing, copy in zip(concerned, copies, strict=True):
                vars(standing).update(vars(copy))
                self._choose(standing)
            raise

    def _conclude(self) -> None:
        """End the episode, and judge it if it was measured."""
        episode, self._episode = self._episode, None
        if episode is None or not episode.can_stop_here:
            return
        stretches, runs = episode.stop() if episode.is_measured else [], episode.runs
        signature = signature_of(runs)
        known = self._standings.get(signature)
        if known is not None and not episode.learns:
            is_settled = all(self._standings.is_settled(run.graph) for run in runs)
            self._routine = Routine.of(runs, self._allowance.receiver) if is_settled else None
            return
        if len(runs) > _MOST_RUNS or not any(run.is_done for run in runs):
            return
        if not episode.learns:
            self._standings.wait_for(signature)
            return
        standing = known or self._standings.setdefault(signature, Standing(runs))
        self._standings.saw(signature, is_measured=bool(stretches))
        peak = max((stretch.peak_bytes for stretch in stretches), default=0)
        if stretches:
            standing.learn(runs, stretches)
        if episode.is_eager:
            self._has_trained |= not standing.is_evaluation
            self._allowance.took_eagerly(runs[0].graph, peak)
            self._replan_all(standing)
        elif known is None or standing.orders is None:
            self._replan(standing)
        elif stretches:
            self._judge(standing, peak)

    def _replan_all(self, first: Standing) -> None:
        """Plan a sequence that eager PyTorch has run, and those that a larger budget may do good."""
        for standing in self._standings.values():
            has_changed = standing.orders is None or standing.is_lowest or self._is_above(standing)
            if standing is first or has_changed:
                standing.tries, standing.is_refused = 0, False
                try:
                    self._replan(standing)
                except BudgetError:  # another sequence is told when it comes
                    if standing is first:
                        raise

    def _judge(self, standing: Standing, peak_bytes: int) -> None:
        """Compare a measured step with the budget."""
        budget = self._budget_of(standing)
        assert budget is not None
        assert standing.orders is not None
        planned = standing.orders
        _log.info(
            "a step took %s, planned were %s; planned extra cost %.1f %%",
            format_bytes(peak_bytes), format_bytes(planned.peak_increase_bytes), 100 * planned.extra_cost_ratio,
        )  # fmt: skip
        if peak_bytes > budget:
            standing.tries += 1
            expected = self._planner.model(standing).peak_of(planned.whole) or planned.peak_increase_bytes
            standing.unmodelled_bytes = max(standing.unmodelled_bytes, peak_bytes - expected)
            self._replan(standing)
            is_same = standing.orders.whole == planned.whole
            if not (standing.tries > _MOST_TRIES or (standing.is_lowest and (is_same or standing.tries > 1))):
                return
        elif planned.extra_cost_ratio and standing.has_news and self._improve(standing):
            return
        standing.is_settled = True
        if peak_bytes > budget:
            self._out_of_reach(standing, peak_bytes)

    def _replan(self, standing: Standing) -> None:
        """Plan the graphs of a standing anew, and run them so from now on."""
        if any(run.graph.joint is None for run in standing.runs):
            standing.is_settled = True
            return
        standing.orders = self._planner.plan(standing, self._budget_of(standing))
        self._choose(standing)
        self._standings.planned(standing)
        # what several graphs hold together is known only roughly: a measured step decides
        is_exact = len(standing.runs) == 1 and not standing.tries
        if is_exact and self._is_above(standing):
            self._out_of_reach(standing, None)

    def _improve(self, standing: Standing) -> bool:
        """Plan once more, with what a measured step has taught; return whether that is cheaper."""
        before, was_lowest, error = standing.orders, standing.is_lowest, standing.error
        after = self._planner.plan(standing, self._budget_of(standing))
        if standing.is_lowest or before is None or after.extra_cost_ratio >= before.extra_cost_ratio:
            standing.is_lowest, standing.error = was_lowest, error
            return False
        standing.orders = after
        self._choose(standing)
        self._standings.planned(standing)
        return True

    def _choose(self, standing: Standing) -> None:
        """Run the graphs of a standing in its orders from now on."""
        if standing.orders is not None:
            for run, order in zip(standing.runs, standing.orders.of_graphs, strict=True):
                run.graph.choose(run.turn, order)

    def _budget_of(self, standing: Standing) -> int | None:
        """Return what a sequence may take; None where nobody knows yet."""
        if standing.is_update:
            return self._allowance.update_bytes
        return self._allowance.whole_bytes if standing.is_evaluation else self._allowance.step_bytes

    def _is_above(self, standing: Standing) -> bool:
        """Return whether the plan of a sequence is above what it may take."""
        budget, orders = self._budget_of(standing), standing.orders
        return budget is not None and orders is not None and orders.peak_increase_bytes > budget

    def _out_of_reach(self, standing: Standing, measured_bytes: int | None) -> None:
        """Raise or warn: the budget cannot be kept."""
        budget = self._budget_of(standing)
        assert budget is not None
        error = standing.out_of_reach(budget, measured_bytes, self._options.names())
        if standing.is_update or not standing.is_evaluation:
            error = error.because(self._allowance.kept_words(is_update=standing.is_update))
        until = ""
        if self._allowance.is_share and not self._has_trained and standing.is_evaluation:
            until = f", until a step is measured: {self._options.budget} are of its peak"
        elif self._options.strict:
            self._standings.refuse(standing)
            raise error
        if not self._is_warned:
            self._is_warned = not until
            used = f"the lowest plan is used{until}"
            warnings.warn(f"torch.compile, backend memwatch: {error}; {used}", stacklevel=2)
