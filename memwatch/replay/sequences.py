"""Watch the steps of a compiled callable, and keep the plan of each sequence of its graphs.

- A *run* is one call of a graph: its forward and, if it has one, its backward.
- An *episode* is a group of runs whose memory is alive together. It begins with a forward that runs while no earlier
  forward waits for its backward. It ends when no forward waits any more. In most programs an episode is one training
  step: some forwards, then their backwards.
- A *sequence* is the list of the graphs that run in an episode, in order.

`State` and `TRANSITIONS` define how a running step is watched, and how the plan of a sequence is made, measured and
accepted.

Most programs repeat the same step. Once the plan of a sequence is measured and accepted, the sequence is settled. From
then on `SettledSequence` only checks that each graph is the next one of the sequence, which costs almost nothing.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch
from torch.autograd.function import BackwardCFunction

from memwatch._torch.autograd import node_of_result
from memwatch._torch.engine import call_after_backwards, keeps_graph, metadata_of
from memwatch._torch.tensors import address_of, version_of
from memwatch.encoding import Value, leaves
from memwatch.planner import BudgetError
from memwatch.replay.measure import AllocatorWindow, Stretch
from memwatch.replay.step_model import StepModel, equal_graph, plan_step, program_order
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from memwatch.replay.options import BackendOptions
    from memwatch.replay.step_model import GraphRun, Orders
    from memwatch.replay.traced_graph import Listener, TracedGraph


class State(Enum):
    """The state of a step, or of the plan of a sequence. The values are the words of docs/planning.md."""

    # a step
    IDLE = "no step is running"
    EAGER = "measured as in eager PyTorch"
    MEASURED = "measured as planned"
    RECORDED = "recorded"
    LISTED = "listed"
    FOLLOWED = "followed"
    # the plan of a sequence
    UNPLANNED = "no plan yet"
    PLANNED = "planned"
    SETTLED = "settled"
    REFUSED = "planned and refused"
    REFUSED_SETTLED = "settled and refused"


class Event(Enum):
    """An event that changes a state. The values are the words of docs/planning.md."""

    # a step
    EAGER_PEAK_MISSING = "a graph is called, and a share needs the peak of eager PyTorch"
    PEAK_MISSING = "a graph is called, and a plan is not measured yet"
    RUNS_MISSING = "a graph is called, and its sequence is not known, or memory cannot be measured now"
    NOTHING_MISSING = "a graph is called, and nothing is left to find out"
    ENDED = "the last backward has run"
    ENDED_SETTLED = "the last backward has run, and all plans with these graphs are settled"
    DEVIATED = "another graph or a larger input comes"
    ABANDONED = "a graph raises, or the backward cannot come any more"
    # the plan of a sequence
    PLAN_MADE = "it is planned"
    PLAN_ACCEPTED = "a measured step is within the budget, or memwatch knows no better plan"
    PLAN_REFUSED = 'no plan fits, with `"strict": True`'
    PREMISES_CHANGED = "larger inputs, more gradients or a new budget require a new plan"


_BEGIN: Final = {
    Event.EAGER_PEAK_MISSING: State.EAGER,
    Event.PEAK_MISSING: State.MEASURED,
    Event.RUNS_MISSING: State.RECORDED,
    Event.NOTHING_MISSING: State.LISTED,
}
_END: Final = {Event.ENDED: State.IDLE, Event.ABANDONED: State.IDLE}
TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = {
    State.IDLE: _BEGIN,
    State.EAGER: _END,
    State.MEASURED: _END,
    State.RECORDED: _END,
    State.LISTED: {**_END, Event.ENDED_SETTLED: State.FOLLOWED},
    # A followed step stays followed when it ends or raises. The next step begins with the first graph again.
    State.FOLLOWED: {Event.DEVIATED: State.LISTED},
    State.UNPLANNED: {
        Event.PLAN_MADE: State.PLANNED,
        Event.PLAN_ACCEPTED: State.SETTLED,  # one of its graphs cannot be planned, so no plan will come
        Event.PREMISES_CHANGED: State.UNPLANNED,
    },
    State.PLANNED: {
        Event.PLAN_MADE: State.PLANNED,
        Event.PLAN_ACCEPTED: State.SETTLED,
        Event.PLAN_REFUSED: State.REFUSED,
        Event.PREMISES_CHANGED: State.PLANNED,
    },
    State.SETTLED: {
        Event.PLAN_MADE: State.PLANNED,
        Event.PLAN_ACCEPTED: State.SETTLED,
        Event.PLAN_REFUSED: State.REFUSED_SETTLED,
        Event.PREMISES_CHANGED: State.SETTLED,
    },
    # The backend refuses the largest inputs only. With smaller inputs the sequence runs, and its plan is measured.
    State.REFUSED: {
        Event.PLAN_MADE: State.REFUSED,
        Event.PLAN_ACCEPTED: State.REFUSED_SETTLED,
        Event.PLAN_REFUSED: State.REFUSED,
        Event.PREMISES_CHANGED: State.PLANNED,
    },
    State.REFUSED_SETTLED: {
        Event.PLAN_MADE: State.REFUSED,
        Event.PLAN_ACCEPTED: State.REFUSED_SETTLED,
        Event.PLAN_REFUSED: State.REFUSED_SETTLED,
        Event.PREMISES_CHANGED: State.SETTLED,
    },
}
"""State -> event -> next state. docs/planning.md has the same table, and a test compares the two."""


def next_state(state: State, event: Event) -> State:
    """Return the state after an event. A `KeyError` means that this event cannot happen in this state."""
    return TRANSITIONS[state][event]


class Mark:
    """Names of the marks in the window of a measured episode."""

    FORWARD = "forward"  # a forward begins
    FORWARD_END = "left"  # a forward has ended
    BACKWARD_REACHED = "tangent"  # an eager backward reaches the outputs of a run
    BACKWARD = "backward"  # the backward of a planned graph begins or ends
    BACKWARD_RETURNED = "returned"  # `backward()` has returned to the program


class _Token:
    """An object that dies together with the autograd graph that a run made."""

    __slots__ = ("__weakref__",)


@dataclass(eq=False, slots=True)
class Run:
    """One run of a graph.

    Attributes:
        graph: the graph.
        turn: how many runs of the same graph came before this run in the episode.
        inputs: addresses of the storages of its arguments; 0 for an argument that is not a tensor. Empty unless
            the episode is recorded.
        outputs: the same for its results.
        is_done: whether its backward has run; True without a backward.
        released: indices of the outputs that the program had dropped when the backward began, in any measured step.
        token: a weak reference to an object that dies when the backward cannot come any more; None without a backward.
        head: index of the last output that has an autograd node and is not an argument.
        node: class of the autograd node of that output. It is only set in an episode that is not recorded, if all
            outputs share one node of an `autograd.Function`.
    """

    graph: TracedGraph
    turn: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...] = ()
    is_done: bool = False
    released: frozenset[int] = frozenset()
    token: weakref.ref[Any] | None = None
    head: int = 0
    node: type | None = None
    _storages: Sequence[weakref.ref[Any] | None] = ()

    def is_pending(self) -> bool:
        """Return True while the backward of this run may come."""
        return not self.is_done and (self.token is None or self.token() is not None)

    @property
    def can_be_followed(self) -> bool:
        """Whether `head` and `node` suffice to find the autograd node of the next run of this graph."""
        return self.token is None or self.node is not None

    def end_forward(
        self, args: Sequence[Any], result: Value, on_dropped: Callable[[], object] | None
    ) -> list[torch.Tensor]:
        """Record the results of the forward; return the results whose gradients start the backward of the graph.

        Args:
            args: the arguments of the forward.
            result: its results.
            on_dropped: called if the autograd graph is dropped before a backward, unless it is None.
        """
        given = set(map(id, args))
        heads: list[torch.Tensor] = []
        nodes: list[Any] = []
        for place, item in enumerate(leaves(result)):
            node = node_of_result(item) if isinstance(item, torch.Tensor) and id(item) not in given else None
            if node is not None:
                self.head = place
                heads.append(item)
                if not nodes or node is not nodes[-1]:
                    nodes.append(node)
        self.is_done = not heads
        self.token = self._token_of(nodes, on_dropped) if nodes else None
        return heads

    def _token_of(self, nodes: list[Any], on_dropped: Callable[[], object] | None) -> weakref.ref[Any] | None:
        """Return a weak reference to an object that dies with the autograd nodes."""
        if on_dropped is None and len(nodes) == 1 and isinstance(nodes[0], BackwardCFunction):
            self.node = type(nodes[0])
            return weakref.ref(nodes[0])  # cheaper than a token, and every step comes here
        token = _Token()
        for node in nodes:
            metadata_of(node)["memwatch", id(self)] = token
        return weakref.ref(token) if on_dropped is None else weakref.ref(token, self._dropped(on_dropped))

    def _dropped(self, then: Callable[[], object]) -> Callable[[object], None]:
        def dropped(_: object) -> None:
            if not self.is_done:
                then()

        return dropped

    def note_outputs(self, result: Value) -> None:
        """Record the addresses of the results, and watch which results the program drops."""
        items = list(leaves(result))
        self.outputs = addresses(items)
        self._storages = [
            weakref.ref(item.untyped_storage()) if address else None
            for item, address in zip(items, self.outputs, strict=True)
        ]

    def note_released_outputs(self) -> None:
        """Record which outputs the program has dropped. Called when the backward begins."""
        gone = (place for place, ref in enumerate(self._storages) if ref is not None and ref() is None)
        self.released |= set(gone)


@dataclass(eq=False)
class Episode:
    """Runs whose memory is alive together, and the allocator window that measures them.

    Attributes:
        state: how the step is watched.
        runs: the runs, in the order of their forwards.
    """

    state: State
    runs: list[Run] = field(default_factory=list)
    _window: AllocatorWindow | None = None
    _thread: int = 0
    _end_calls: Callable[[], None] = lambda: None

    @property
    def is_recorded(self) -> bool:
        """Whether the addresses of arguments and results are recorded, and not just the order of the runs."""
        return self.state is not State.LISTED

    @property
    def is_measured(self) -> bool:
        """Whether a window is open."""
        return self._window is not None

    def measure(self, device: str, after_backward: Callable[[], object]) -> None:
        """Begin to measure. Call `after_backward` whenever a backward has returned."""
        self._window = AllocatorWindow(device)
        self._thread = threading.get_ident()
        self._end_calls = call_after_backwards(after_backward)

    def mark(self, name: str) -> None:
        """Set a mark in the window."""
        if self._window is not None:
            self._window.mark(name)

    def stop(self) -> list[Stretch]:
        """End the window; return its stretches up to the return of the last backward."""
        window = self._window
        self._window = None
        if window is None:
            return []
        self._end_calls()
        found = window.stop()
        ends = [place for place, stretch in enumerate(found) if stretch.name == Mark.BACKWARD_RETURNED]
        return found[: ends[-1]] if ends else found

    @property
    def is_in_window_thread(self) -> bool:
        """Whether the calling thread began the window, so that it may end it."""
        return self._window is None or self._thread == threading.get_ident()

    def is_pending(self) -> bool:
        """Return True while the backward of some run may come."""
        for run in self.runs:  # noqa: SIM110  # every step calls this, and a generator costs more
            if run.is_pending():
                return True
        return False

    def last_waiting(self, graph: TracedGraph) -> Run | None:
        """Return the last run of a graph that still waits for its backward."""
        for run in self.runs[::-1]:
            if run.graph is graph and not run.is_done:
                return run
        return None

    def note_backward(self, run: Run, name: str) -> None:
        """Set a mark, and record that the backward came. With `retain_graph=True`, the run waits for another one."""
        self.mark(name)
        if not keeps_graph():
            run.is_done = True

    def hook_backward(self, run: Run, heads: list[torch.Tensor]) -> None:
        """Register hooks that mark when an eager backward reaches the outputs of a run."""

        def reached(_: torch.Tensor) -> None:
            run.note_released_outputs()
            self.note_backward(run, Mark.BACKWARD_REACHED)

        for head in heads:
            if head.requires_grad:
                head.register_hook(reached)


def addresses(items: Sequence[Any]) -> tuple[int, ...]:
    """Return the addresses of the storages of tensors; 0 for values of other types and sparse tensors."""
    return tuple(
        address_of(item.untyped_storage())
        if isinstance(item, torch.Tensor) and item.layout is torch.strided
        else 0
        for item in items
    )


@dataclass(eq=False, slots=True)
class SettledSequence:
    """A sequence whose plan needs no more measurements, and the position of the program in it.

    Args:
        runs: the runs of the last episode of this sequence.
        probe: a parameter that had no gradient whenever the sequence began. If it has one at the next beginning, the
            program has started to accumulate gradients.
    """

    state: ClassVar[State] = State.FOLLOWED
    runs: Sequence[Run]
    probe: weakref.ref[Any] | None = None
    _version: int = -1
    _waiting: list[weakref.ref[Any] | None] = field(default_factory=list)
    _listeners: list[tuple[TracedGraph, Listener | None, Listener | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for graph in {run.graph for run in self.runs}:
            self._listeners.append((graph, graph.on_begin, graph.on_end))
            graph.on_begin = None
            graph.on_end = self._backward_ended

    @classmethod
    def of(cls, runs: Sequence[Run], probe: weakref.ref[Any] | None = None) -> SettledSequence | None:
        """Return the settled sequence of these runs; None if the autograd node of some run cannot be found again."""
        return cls(runs, probe) if all(run.can_be_followed for run in runs) else None

    def accept(self, graph: TracedGraph) -> bool:
        """Return True if a graph is the next one of the sequence, and set its `turn`. Every call comes here."""
        place = len(self._waiting)
        if place and not self.is_pending():
            if place < len(self.runs):
                return False  # the sequence has ended early, so the program runs another one
            self._waiting.clear()
            place = 0
        if place == len(self.runs) or self.runs[place].graph is not graph:
            return False
        if not place and self.probe is not None and self._gradient_exists():
            return False
        graph.turn = self.runs[place].turn
        return True

    def _gradient_exists(self) -> bool:
        """Return True if the probe has a gradient, and no update has changed the probe since the last sequence began.

        Then the program accumulates gradients.
        """
        item = None if self.probe is None else self.probe()
        if item is None:
            return False
        before, self._version = self._version, version_of(item)
        return item.grad is not None and before == self._version

    def parameters_unchanged(self) -> bool:
        """Return True if the probe was not changed since the sequence began."""
        item = None if self.probe is None else self.probe()
        return item is not None and version_of(item) == self._version

    def end_forward(self, args: Sequence[Any], result: Any) -> None:
        """Record the autograd node of the results of a forward."""
        like = self.runs[len(self._waiting)]
        node = None if like.node is None else node_of_result(result[like.head])
        if type(node) is like.node:
            self._waiting.append(weakref.ref(node))
        elif like.node is None:
            self._waiting.append(None)
        else:  # the outputs have changed, so search all of them for the node
            run = Run(like.graph, like.turn, ())
            run.end_forward(args, result, None)
            self._waiting.append(run.token)

    def _backward_ended(self, graph: TracedGraph) -> None:
        """Record that the backward of a graph has run."""
        if keeps_graph():
            return
        for place in range(len(self._waiting) - 1, -1, -1):
            if self._waiting[place] is not None and self.runs[place].graph is graph:
                self._waiting[place] = None
                return

    def is_pending(self) -> bool:
        """Return True while the backward of some run may come."""
        for waiting in self._waiting:  # noqa: SIM110  # every call comes here, and a generator costs more
            if waiting is not None and waiting() is not None:
                return True
        return False

    def reset(self) -> None:
        """Go back to the start of the sequence, because a graph raised."""
        self._waiting.clear()

    def as_episode(self) -> Episode:
        """End the settled sequence; return its runs so far as an ordinary episode that is listed."""
        for graph, on_begin, on_end in self._listeners:
            graph.on_begin = on_begin
            graph.on_end = on_end
        runs = [
            Run(like.graph, like.turn, (), is_done=waiting is None, token=waiting)
            for like, waiting in zip(self.runs, self._waiting, strict=False)
        ]
        return Episode(next_state(State.FOLLOWED, Event.DEVIATED), runs)


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
        state: the state of its plan.
        has_new_measurements: whether measured figures have changed since the orders were planned.
        is_lowest: whether no plan fits the budget, and its orders are the lowest ones found.
        error: the error of the planner that explains why no plan fits the budget.
    """

    runs: list[Run]
    orders: Orders | None = None
    outside_bytes: list[int] = field(default_factory=list)
    kept_bytes: list[int] = field(default_factory=list)
    unmodelled_bytes: int = 0
    num_over_budget: int = 0
    has_run: bool = False
    state: State = State.UNPLANNED
    has_new_measurements: bool = False
    is_lowest: bool = False
    error: BudgetError | None = None

    def note(self, event: Event) -> None:
        """Change the state of the plan."""
        self.state = next_state(self.state, event)

    @property
    def is_settled(self) -> bool:
        """Whether its plan is accepted, so that nothing is left to measure."""
        return self.state in (State.SETTLED, State.REFUSED_SETTLED)

    @property
    def is_refused(self) -> bool:
        """Whether the program gets an error at the largest inputs, because the sequence exceeds the budget."""
        return self.state in (State.REFUSED, State.REFUSED_SETTLED)

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
        """Scale the measurements for larger inputs, and record that the sequence needs a new plan."""
        self.num_over_budget = 0
        self.note(Event.PREMISES_CHANGED)
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


def kept_bytes(stretches: list[Stretch], num_runs: int, before: list[int]) -> list[int]:
    """Return for each run the bytes that the code up to the next forward keeps, such as tensors saved for backward."""
    pairs = zip(stretches, [*stretches[1:], None], strict=True)
    found = [
        max(after.start_bytes - stretch.start_bytes, 0)
        if after is not None and after.name == Mark.FORWARD
        else 0
        for stretch, after in pairs
        if stretch.name == Mark.FORWARD_END
    ]
    found = found if len(found) == num_runs else [0] * num_runs
    return [max(pair) for pair in zip(found, before, strict=True)] if before else found


def outside_bytes(stretches: list[Stretch], num_runs: int, before: list[int]) -> list[int]:
    """Return for each run the most bytes that the code after its forward allocated, in any measured step."""
    left = [
        stretch.peak_bytes - stretch.start_bytes for stretch in stretches if stretch.name == Mark.FORWARD_END
    ]
    found = left if len(left) == num_runs else [0] * num_runs
    return [max(pair) for pair in zip(found, before, strict=True)] if before else found


_MOST_IDLE: Final = 8
"""Measured episodes in a row whose sequences were settled already. After so many, memwatch stops waiting for a sequence
whose plan was not measured: it probably does not run any more. A guess."""


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

    def all_settled(self, runs: list[Run]) -> bool:
        """Return True if nothing is left to measure for the graphs of these runs."""
        return all(self.is_settled(run.graph) for run in runs)

    def refuse(self, sequence: KnownSequence) -> None:
        """Mark a sequence that exceeds the budget, so that its next call raises."""
        sequence.note(Event.PLAN_REFUSED)
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
        sequence.note(Event.PLAN_MADE)
        self._settled = None
        self._num_idle = 0


@dataclass(frozen=True)
class SequencePlanner:
    """Plans sequences with the user's options.

    Attributes:
        options: the user's options.
        device: device whose bytes count.
    """

    options: BackendOptions
    device: str

    def model(self, sequence: KnownSequence, *, outputs_released: bool = False) -> StepModel:
        """Return the model of a sequence; see `KnownSequence.as_runs`."""
        model = StepModel(sequence.as_runs(outputs_released=outputs_released), self.device)
        model.graph = equal_graph(model.graph)
        return model

    def torch_orders(self, sequence: KnownSequence) -> Orders:
        """Return the orders of torch's own partition, or the program's orders where torch's are not known."""
        model = self.model(sequence)
        own = model.torch_partition_order()
        orders = None if own is None else model.cut(own)
        return orders or program_order(model)

    def plan(
        self, sequence: KnownSequence, budget_bytes: int | None, *, outputs_released: bool = False
    ) -> Orders:
        """Return orders within the budget, or the lowest ones found; set `is_lowest` and `error` of the sequence."""
        model = self.model(sequence, outputs_released=outputs_released)
        wanted = None if budget_bytes is None else max(budget_bytes - sequence.unmodelled_bytes, 0)
        planned = plan_step(model, model.torch_partition_order(), wanted, self.options)
        graphs = [run.graph for run in sequence.runs]
        # No plan fits: split ops in two, and plan again from the plan so far.
        parts = {graph: graph.split() for graph in set(graphs)} if planned.is_lowest else {}
        if any(parts.values()):
            model = self.model(sequence)
            order = model.with_parts(planned.orders.whole, [parts[graph] for graph in graphs])
            planned = plan_step(model, model.torch_partition_order(), wanted, self.options, [order])
        # Still no plan fits: save random states, so that random ops can be recomputed.
        may_draw = planned.is_lowest and self.options.recompute
        states = {graph: graph.keep_random_states() for graph in set(graphs)} if may_draw else {}
        if any(states.values()):
            model = self.model(sequence)
            order = model.with_states(planned.orders.whole, [states[graph] for graph in graphs])
            planned = plan_step(model, model.torch_partition_order(), wanted, self.options, [order])
        sequence.has_new_measurements = False
        sequence.is_lowest = planned.is_lowest
        sequence.error = planned.error
        return planned.orders

    def plan_for_released_outputs(
        self, sequence: KnownSequence, budget_bytes: int | None, before: Orders
    ) -> Orders:
        """Plan as if the program dropped all outputs before the backward; return `before` if that is not lower.

        The assumption may be wrong. The first step of the plan is measured, and shows which outputs the program holds.
        """
        error = sequence.error
        orders = self.plan(sequence, budget_bytes, outputs_released=True)
        if orders.peak_increase_bytes < before.peak_increase_bytes:
            return orders
        sequence.error = error
        return before
