"""An episode: the runs of a compiled callable whose memory is alive together.

An episode begins with a forward while no earlier forward waits for its backward. It ends when no forward waits any
more. In most programs it is one step: some forwards, then their backwards. The first episodes are measured.

Most programs make the same step over and over. Once its plan was measured, the sequence of runs is settled. From then
on `SettledSequence` only checks that each graph is the next one of the sequence, at next to no cost.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import BackwardCFunction

from memwatch._torch.autograd import node_of_result
from memwatch._torch.engine import call_after_backwards, keeps_graph, metadata_of
from memwatch._torch.tensors import address_of, version_of
from memwatch.encoding import Value, leaves
from memwatch.replay.measure import AllocatorWindow, Stretch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memwatch.replay.traced_graph import Listener, TracedGraph


# names of the marks in the window of a measured episode
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
        turn: how many runs of the same graph came before it in the episode.
        inputs: addresses of the storages of its arguments; 0 for an argument that is not a tensor. Empty unless
            the episode is learning.
        outputs: the same for its results.
        is_done: whether its backward has run; True without a backward.
        released: numbers of the outputs that the program had dropped when the backward began, in any measured step.
        token: a reference that dies when the backward cannot come any more; None without a backward.
        head: number of the last output that leads to the backward.
        node: class of the autograd node of that output, in a settled episode with a single node.
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
        """Record the results of the forward; return the tensors whose backward leads into the graph.

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
        """Return a weak reference that dies with the nodes."""
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
    """Runs that share memory, and the allocator window that measures them.

    Attributes:
        is_eager: whether the graphs run as in eager PyTorch, to measure its peak.
        is_learning: whether the addresses of arguments and results are recorded.
        runs: the runs, in the order of their forwards.
    """

    is_eager: bool = False
    is_learning: bool = False
    runs: list[Run] = field(default_factory=list)
    _window: AllocatorWindow | None = None
    _thread: int = 0
    _end_calls: Callable[[], None] = lambda: None

    @property
    def is_settled(self) -> bool:
        """Whether the episode is neither measured nor learning: it records only the sequence of runs."""
        return self._window is None and not self.is_learning

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
        ends = [place for place, stretch in enumerate(found) if stretch.name == BACKWARD_RETURNED]
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
        """Set a mark. Unless the graph is kept, the run waits for its backward no more."""
        self.mark(name)
        if not keeps_graph():
            run.is_done = True

    def hook_backward(self, run: Run, heads: list[torch.Tensor]) -> None:
        """Register hooks that mark when an eager backward reaches the outputs of a run."""

        def reached(_: torch.Tensor) -> None:
            run.note_released_outputs()
            self.note_backward(run, BACKWARD_REACHED)

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


def kept_bytes(stretches: list[Stretch], num_runs: int, before: list[int]) -> list[int]:
    """Return for each run the bytes that the code up to the next forward keeps, such as tensors saved for backward."""
    pairs = zip(stretches, [*stretches[1:], None], strict=True)
    found = [
        max(after.start_bytes - stretch.start_bytes, 0) if after is not None and after.name == FORWARD else 0
        for stretch, after in pairs
        if stretch.name == FORWARD_END
    ]
    found = found if len(found) == num_runs else [0] * num_runs
    return [max(pair) for pair in zip(found, before, strict=True)] if before else found


def outside_bytes(stretches: list[Stretch], num_runs: int, before: list[int]) -> list[int]:
    """Return for each run the most bytes that the code after its forward allocated, in any measured step."""
    left = [stretch.peak_bytes - stretch.start_bytes for stretch in stretches if stretch.name == FORWARD_END]
    found = left if len(left) == num_runs else [0] * num_runs
    return [max(pair) for pair in zip(found, before, strict=True)] if before else found


@dataclass(eq=False, slots=True)
class SettledSequence:
    """A sequence whose plan needs no more measurements, and the position of the program in it.

    Args:
        runs: the runs of the last episode of this sequence.
        probe: a parameter that had no gradient whenever the sequence began. If it has one at the next beginning, the
            program has started to accumulate gradients.
    """

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
        """Return True if a graph is the next one of the sequence, and give it its turn. Every call comes here."""
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
        """Return True if the probe has a gradient of the current step; otherwise a step begins now."""
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
        """Start the sequence again, because a graph raised."""
        self._waiting.clear()

    def as_episode(self) -> Episode:
        """End the settled sequence; return its pending runs as an episode, which is followed in the ordinary way."""
        for graph, on_begin, on_end in self._listeners:
            graph.on_begin = on_begin
            graph.on_end = on_end
        runs = [
            Run(like.graph, like.turn, (), is_done=waiting is None, token=waiting)
            for like, waiting in zip(self.runs, self._waiting, strict=False)
        ]
        return Episode(runs=runs)
