"""Keep one budget for all graphs of a compiled callable: plan them, measure them, and plan again.

A budget such as "60%" is a share of the memory that eager PyTorch takes. So the first step runs as eager PyTorch does,
and is measured. Later steps run as planned. The first step of each new plan is measured. If it exceeds the budget, the
step is planned again with the measured figures. If no plan keeps the budget, a warning has both figures. If code that
is not compiled runs before the first graph, a second warning says that the budget does not cover it.

A batch may be larger than all batches before it. If the graph has symbolic sizes, `follow` drops the settled plan, and
`begin_run` plans again for the larger sizes before the graph runs. If the budget is a share, the step runs as eager
PyTorch does first, because the peak of eager PyTorch is not known for these sizes. If no plan keeps the budget, the
plans for the smaller sizes stay. If the graph has no symbolic sizes, torch compiles another graph for the larger batch,
and memwatch plans it like any other graph.
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
from memwatch.replay.measure import can_measure
from memwatch.replay.sequences import (
    Episode,
    Event,
    KnownSequence,
    KnownSequences,
    Mark,
    Run,
    SequencePlanner,
    SettledSequence,
    State,
    addresses,
    next_state,
    signature_of,
)
from memwatch.replay.step_budget import StepBudget
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.encoding import Value
    from memwatch.replay.options import BackendOptions
    from memwatch.replay.rewrite import Move
    from memwatch.replay.traced_graph import TracedGraph


def warn_of_uncovered(args: Sequence[Any]) -> None:
    """Warn if code that is not compiled made tensors with an autograd graph before the first compiled graph."""
    if is_resumed() and any(
        isinstance(item, torch.Tensor) and node_of_result(item) is not None for item in args
    ):
        warnings.warn(
            "torch.compile, backend memwatch: code that torch.compile does not compile runs before the first graph; "
            "the budget does not cover what it keeps for the backward",
            stacklevel=2,
        )


_log = logging.getLogger(__name__)
_MOST_TRIES: Final = 3
"""Plans per sequence whose measured peak may exceed the budget, before the last one is used with a warning. A guess."""
_MOST_RUNS: Final = 64
"""Runs of an episode that is planned as one step. A longer one is a loop that keeps everything. A guess."""

_UNMEASURED: Final = (
    "torch.compile, backend memwatch: a profiler runs, so the backend cannot measure this step, and the budget may "
    "not be kept; run the first steps outside `memwatch.profile()` and other profilers"
)


class BudgetKeeper:
    """Plans the graphs of a compiled callable, measures their peak, and plans again where it exceeds the budget.

    Args:
        options: the user's options.
        device: device whose bytes count.
    """

    def __init__(self, options: BackendOptions, device: str) -> None:
        self._options = options
        self._device = device
        self._step_budget = StepBudget(options.budget, device)
        self._planner = SequencePlanner(options, device)
        self._step: Episode | SettledSequence | None = None
        self._graphs: list[TracedGraph] = []
        self._sequences = KnownSequences()
        self._has_warned = False
        self._has_trained = False
        self._has_warned_unmeasured = False

    @property
    def has_budget(self) -> bool:
        """Whether there is a budget to keep."""
        return self._options.budget is not None

    @property
    def is_step_running(self) -> bool:
        """Whether a step has begun and not ended."""
        return self._step is not None and self._step.is_pending()

    @property
    def _episode(self) -> Episode | None:
        return self._step if isinstance(self._step, Episode) else None

    def _enter(
        self, event: Event, before: Episode | SettledSequence | None, after: Episode | SettledSequence | None
    ) -> None:
        """Go from one step to the next one, along a transition of the table."""
        reached = State.IDLE if after is None else after.state
        assert reached is next_state(State.IDLE if before is None else before.state, event)
        self._step = after

    def add_graph(self, graph: TracedGraph) -> list[str | Move]:
        """Add a graph that was just traced, and return its first order of ops.

        With the option `strict`, a graph that exceeds the budget alone is refused when it is called. If it were refused
        now, during the compilation, the program would see an error of torch.
        """
        graph.number = len(self._graphs)
        self._graphs.append(graph)
        graph.on_begin = self._backward_begins
        graph.on_end = self._backward_ended
        run = Run(graph, 0, ())
        sequence = KnownSequence([run])
        if self._step_budget.is_share:
            return self._planner.torch_orders(sequence).of_graphs[0]
        budget = self._budget_of(sequence)
        orders = sequence.orders = self._planner.plan(sequence, budget)
        sequence.note(Event.PLAN_MADE)
        self._sequences[signature_of([run])] = sequence
        if self._exceeds_budget(sequence):
            orders = sequence.orders = self._planner.plan_for_released_outputs(sequence, budget, orders)
        if self._exceeds_budget(sequence):
            if self._options.strict:
                self._sequences.refuse(sequence)
            else:
                self._refuse_or_warn(sequence, None)
        return orders.of_graphs[0]

    def follow(self, graph: TracedGraph, args: Sequence[Any]) -> SettledSequence | None:
        """Return the settled sequence if this graph is its next one. If not, the caller calls `begin_run`."""
        step = self._step
        if isinstance(step, Episode) and step.state is State.LISTED and not step.is_pending():
            self._end_episode()
            step = self._step
        if not isinstance(step, SettledSequence):
            return None
        if step.accept(graph) and not (graph.hints and graph.is_larger(args)):
            return step
        self._stop_following(step)
        return None

    def _stop_following(self, settled: SettledSequence) -> None:
        """Go on with an ordinary episode, because the program leaves the settled sequence."""
        if settled.parameters_unchanged():
            self._step_budget.continue_step()
        self._enter(Event.DEVIATED, settled, settled.as_episode())

    def begin_run(self, graph: TracedGraph, args: Sequence[Any]) -> Run:
        """Add a run of a graph to the current episode, or begin an episode with it.

        Raises:
            BudgetError: with the option `strict`, the graph exceeds the budget with these inputs.
        """
        episode = self._episode
        if episode is None or not episode.is_pending():
            self._end_episode()
            if isinstance(
                self._step, SettledSequence
            ):  # the program dropped its backward after the call of `follow`
                self._stop_following(self._step)
            self._step_budget.note_parameters(args)
            episode = self._begin_episode(graph, args)
        else:
            self._step_budget.note_parameters(args)
        turn = sum(run.graph is graph for run in episode.runs) if episode.runs else 0
        run = Run(graph, turn, addresses(args) if episode.is_recorded else ())
        refused = self._sequences.find_refused([*episode.runs, run])
        if refused is not None and graph.values(args) == graph.largest:
            self.abandon_episode()
            self._refuse_or_warn(refused, None)
        try:
            if graph.hints and episode.state is not State.EAGER:
                self._plan_larger_shapes(graph, args)
        except BudgetError:
            self.abandon_episode()
            raise
        graph.turn = turn
        episode.runs.append(run)
        episode.mark(Mark.FORWARD)
        return run

    def runs_eagerly(self, run: Run) -> bool:
        """Return True for a run that is measured to find the peak of eager PyTorch."""
        episode = self._episode
        return episode is not None and episode.state is State.EAGER and run in episode.runs

    def end_run(self, run: Run, args: Sequence[Any], result: Value) -> None:
        """Record the results of a forward, and end the episode if no backward will follow."""
        episode = self._episode
        is_recorded = episode is not None and episode.is_recorded
        heads = run.end_forward(
            args, result, (lambda: self._backward_dropped(episode)) if is_recorded else None
        )
        if episode is None or not is_recorded or run not in episode.runs:
            return
        episode.mark(Mark.FORWARD_END)
        run.note_outputs(result)
        if episode.state is State.EAGER:
            episode.hook_backward(run, heads)
        if episode.is_measured and not episode.is_pending():
            self._end_episode()

    def abandon_episode(self) -> None:
        """Stop the measurement without a result, for instance because a graph raised."""
        episode = self._episode
        if episode is not None and episode.is_in_window_thread:
            episode.stop()
            self._enter(Event.ABANDONED, episode, None)

    def _backward_dropped(self, episode: Episode | None) -> None:
        """Abandon a measured episode whose backward cannot come any more, for instance after an exception."""
        if (
            episode is not None
            and episode is self._episode
            and episode.is_measured
            and not episode.is_pending()
        ):
            self.abandon_episode()

    def _backward_begins(self, graph: TracedGraph) -> None:
        """Mark in the window that the backward of a graph begins."""
        episode = self._episode
        if episode is None or not episode.is_recorded:
            return
        run = episode.last_waiting(graph)
        episode.mark(Mark.BACKWARD)
        if run is not None:
            run.note_released_outputs()

    def _backward_ended(self, graph: TracedGraph) -> None:
        """Mark in the window that the backward of a graph has run."""
        episode = self._episode
        if episode is not None and (run := episode.last_waiting(graph)) is not None:
            episode.note_backward(run, Mark.BACKWARD)

    def _backward_returned(self) -> None:
        episode = self._episode
        if episode is None:
            return
        self._step_budget.note_backward_end()
        episode.mark(Mark.BACKWARD_RETURNED)
        if not episode.is_pending() and episode.is_in_window_thread:
            self._end_episode()

    def _begin_episode(self, graph: TracedGraph, args: Sequence[Any]) -> Episode:
        """Begin an episode with this graph, and measure it if its peak is needed."""
        event = self._beginning_event(graph, args)
        episode = Episode(next_state(State.IDLE, event))
        if episode.state in (State.EAGER, State.MEASURED):
            warn_of_uncovered(args)
            if graph.is_larger(args):
                self._step_budget.forget_measurements(graph)
            if episode.state is State.EAGER:
                graph.record_sizes(args)
            episode.measure(self._device, self._backward_returned)
        self._enter(event, None, episode)
        return episode

    def _beginning_event(self, graph: TracedGraph, args: Sequence[Any]) -> Event:
        """Return the event with which this graph begins an episode. It depends on what is not measured yet."""
        if self._options.budget is None:
            return Event.NOTHING_MISSING
        kept = self._step_budget.kept_gradients()
        has_more = self._step_budget.note_gradients(graph)
        if has_more and not self._step_budget.is_share:
            self._plan_for_kept_gradients(graph, kept)
        if not graph.hints and not has_more and self._sequences.is_settled(graph):
            return Event.NOTHING_MISSING
        is_new = has_more or graph.is_larger(args) or not self._sequences.has_run(graph)
        if not is_new and not self._sequences.must_measure:
            return Event.RUNS_MISSING if self._sequences.unlearned else Event.NOTHING_MISSING
        if not can_measure():
            if not self._has_warned_unmeasured:
                self._has_warned_unmeasured = True
                warnings.warn(_UNMEASURED, stacklevel=2)
            return Event.RUNS_MISSING
        return Event.EAGER_PEAK_MISSING if self._step_budget.is_share and is_new else Event.PEAK_MISSING

    def _plan_larger_shapes(self, graph: TracedGraph, args: Sequence[Any]) -> None:
        """Plan again because an input is larger than all inputs before it."""
        if not graph.is_larger(args):
            return
        before = dict(graph.largest)
        try:
            self._replan_for(self._sequences.with_graph(graph), graph.record_sizes(args))
        except BudgetError:
            graph.largest.update(before)
            raise

    def _plan_for_kept_gradients(self, graph: TracedGraph, kept: tuple[dict[bool, int], int]) -> None:
        """Plan again because this episode begins with more bytes of gradients than all episodes before it."""
        known = list(self._sequences.values())
        updates = [one for one in known if one.is_update]
        try:
            self._replan_for(
                updates if graph.is_update else [one for one in known if not one.is_evaluation], 1.0
            )
        except BudgetError:
            self._step_budget.restore_kept_gradients(kept)
            raise

    def _replan_for(self, concerned: list[KnownSequence], factor: float) -> None:
        """Plan sequences again because their shapes have grown or their budget has shrunk.

        If an error says that one of them does not fit, all keep their old plans.
        """
        copies = [dataclasses.replace(sequence) for sequence in concerned]
        self._has_warned = False
        try:
            for sequence in concerned:
                sequence.scale(factor)
                self._replan(sequence)
        except BudgetError:  # the smaller shapes still fit, so the old plans stay
            for sequence, copy in zip(concerned, copies, strict=True):
                vars(sequence).update(vars(copy))
                self._use_orders(sequence)
            raise

    def _end_episode(self) -> None:
        """End the episode. Use its measurement, if there is one, to plan or to check the plan."""
        episode = self._episode
        if episode is None:
            return
        runs = episode.runs
        signature = signature_of(runs)
        known = self._sequences.get(signature)
        settled = None
        if not episode.is_recorded and known is not None and self._sequences.all_settled(runs):
            settled = SettledSequence.of(runs, self._step_budget.probe)
        self._enter(Event.ENDED if settled is None else Event.ENDED_SETTLED, episode, settled)
        if not episode.is_in_window_thread:
            return
        stretches = episode.stop() if episode.is_measured else []
        is_whole = len(runs) <= _MOST_RUNS and any(run.is_done for run in runs)
        if not episode.is_recorded:
            if known is None and is_whole:
                self._sequences.learn_next_time(signature)
            return
        if not is_whole:
            return
        sequence = known or self._sequences.setdefault(signature, KnownSequence(runs))
        self._sequences.note_end(signature, is_measured=bool(stretches))
        peak = max((stretch.peak_bytes for stretch in stretches), default=0)
        if stretches:
            sequence.add_measurement(runs, stretches)
        if episode.state is State.EAGER:
            self._has_trained |= not sequence.is_evaluation
            self._step_budget.note_eager_peak(runs[0].graph, peak)
            self._plan_after_eager(sequence)
        elif known is None or sequence.orders is None:
            self._replan(sequence)
        elif stretches:
            self._compare_with_budget(sequence, peak)

    def _plan_after_eager(self, first: KnownSequence) -> None:
        """Plan the sequence that eager PyTorch has just run, and others whose plan a larger budget may improve."""
        for sequence in self._sequences.values():
            has_changed = sequence.orders is None or sequence.is_lowest or self._exceeds_budget(sequence)
            if sequence is first or has_changed:
                sequence.num_over_budget = 0
                sequence.note(Event.PREMISES_CHANGED)
                try:
                    self._replan(sequence)
                except BudgetError:  # another sequence raises when it runs
                    if sequence is first:
                        raise

    def _compare_with_budget(self, sequence: KnownSequence, peak_bytes: int) -> None:
        """Compare a measured step with the budget: plan again, or accept the plan as settled."""
        budget = self._budget_of(sequence)
        assert budget is not None
        assert sequence.orders is not None
        planned = sequence.orders
        _log.info(
            "a step took %s, planned were %s; planned extra cost %.1f %%",
            format_bytes(peak_bytes),
            format_bytes(planned.peak_increase_bytes),
            100 * planned.extra_cost_ratio,
        )
        if peak_bytes > budget:
            sequence.num_over_budget += 1
            expected = self._planner.model(sequence).peak_of(planned.whole) or planned.peak_increase_bytes
            sequence.unmodelled_bytes = max(sequence.unmodelled_bytes, peak_bytes - expected)
            self._replan(sequence)
            is_same = sequence.orders.whole == planned.whole
            cannot_improve = sequence.is_lowest and (is_same or sequence.num_over_budget > 1)
            if sequence.num_over_budget <= _MOST_TRIES and not cannot_improve:
                return
        elif planned.extra_cost_ratio and sequence.has_new_measurements and self._plan_cheaper(sequence):
            return
        sequence.note(Event.PLAN_ACCEPTED)
        if peak_bytes > budget:
            self._refuse_or_warn(sequence, peak_bytes)

    def _replan(self, sequence: KnownSequence) -> None:
        """Plan a sequence again and use the new orders from now on."""
        if any(run.graph.joint is None for run in sequence.runs):  # a graph that cannot be planned
            sequence.note(Event.PLAN_ACCEPTED)
            return
        sequence.orders = self._planner.plan(sequence, self._budget_of(sequence))
        self._use_orders(sequence)
        self._sequences.note_plan(sequence)
        # the peak of several graphs together is an estimate, so a measured step decides
        is_exact = len(sequence.runs) == 1 and not sequence.num_over_budget
        if is_exact and self._exceeds_budget(sequence):
            self._refuse_or_warn(sequence, None)

    def _plan_cheaper(self, sequence: KnownSequence) -> bool:
        """Plan once more with the figures of a measured step. Return True if the new plan is cheaper and in use."""
        before = sequence.orders
        was_lowest = sequence.is_lowest
        error = sequence.error
        after = self._planner.plan(sequence, self._budget_of(sequence))
        if sequence.is_lowest or before is None or after.extra_cost_ratio >= before.extra_cost_ratio:
            sequence.is_lowest = was_lowest
            sequence.error = error
            return False
        sequence.orders = after
        self._use_orders(sequence)
        self._sequences.note_plan(sequence)
        return True

    def _use_orders(self, sequence: KnownSequence) -> None:
        """Run the graphs of a sequence in its planned orders from now on."""
        if sequence.orders is not None:
            for run, order in zip(sequence.runs, sequence.orders.of_graphs, strict=True):
                run.graph.use_order(run.turn, order)

    def _budget_of(self, sequence: KnownSequence) -> int | None:
        """Return the bytes that a sequence may take; None before eager PyTorch was measured."""
        if sequence.is_update:
            return self._step_budget.update_bytes
        return self._step_budget.whole_bytes if sequence.is_evaluation else self._step_budget.step_bytes

    def _exceeds_budget(self, sequence: KnownSequence) -> bool:
        budget = self._budget_of(sequence)
        orders = sequence.orders
        return budget is not None and orders is not None and orders.peak_increase_bytes > budget

    def _refuse_or_warn(self, sequence: KnownSequence, measured_bytes: int | None) -> None:
        """Raise an error if the option `strict` is set, or else warn, because no plan keeps the budget."""
        budget = self._budget_of(sequence)
        assert budget is not None
        error = sequence.budget_error(budget, measured_bytes, self._options.names())
        if sequence.is_update or not sequence.is_evaluation:
            error = error.because(self._step_budget.gradient_sentence(is_update=sequence.is_update))
        until = ""
        if self._step_budget.is_share and not self._has_trained and sequence.is_evaluation:
            until = f", until a step is measured: {self._options.budget} are of its peak"
        elif self._options.strict:
            self._sequences.refuse(sequence)
            raise error
        if not self._has_warned:
            self._has_warned = not until
            used = f"the lowest plan is used{until}"
            warnings.warn(f"torch.compile, backend memwatch: {error}; {used}", stacklevel=2)
