"""An episode: the runs of a compiled callable whose memory is alive together.

It begins with a forward while no earlier one waits for its backward, and ends when none waits any more. In most
programs it is one step: some forwards, then their backwards.
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
from memwatch.encoding.values import Value, leaves
from memwatch.replay.measure import AllocatorWindow, Stretch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memwatch.replay.traced_graph import Listener, TracedGraph


FORWARD, LEFT, TANGENT, BACKWARD, RETURNED = "forward", "left", "tangent", "backward", "returned"


class _Token:
    """Lives as long as the graph of autograd that a run made."""

    __slots__ = ("__weakref__",)


@dataclass(eq=False, slots=True)
class Run:
    """One run of a graph.

    Attributes:
        graph: the graph.
        turn: how many runs of the same graph came before it in the episode.
        inputs, outputs: addresses of the storages that it was given and gave; 0 for what is no tensor. Empty in an
            episode that learns nothing.
        is_done: whether its backward has run, or it has none.
        released: which outputs were gone when the backward began, in any step that was measured.
        token: dies when its backward cannot come any more; None where none can come, or before it has run.
        head, node: which output led to the backward, and by which class of node, in an episode that is settled.
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
        """Return True while its backward may come."""
        return not self.is_done and (self.token is None or self.token() is not None)

    @property
    def can_be_followed(self) -> bool:
        """Whether the next run of its kind is known by `head` and `node`."""
        return self.token is None or self.node is not None

    def left(
        self, args: Sequence[Any], result: Value, on_dropped: Callable[[], object] | None
    ) -> list[torch.Tensor]:
        """Note what the forward gave; return those of its tensors whose backward leads into the graph.

        Args:
            args: what it was given.
            result: what it gave.
            on_dropped: called when its backward cannot come any more, though it never came; None: nobody asks.
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
        """Return a reference that dies with the nodes."""
        if on_dropped is None and len(nodes) == 1 and isinstance(nodes[0], BackwardCFunction):
            self.node = type(nodes[0])
            return weakref.ref(nodes[0])  # the same at less cost: this is done in each step
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
        """Note what the forward gave, and follow which of it the program lets go of."""
        items = list(leaves(result))
        self.outputs = addresses(items)
        self._storages = [
            weakref.ref(item.untyped_storage()) if address else None
            for item, address in zip(items, self.outputs, strict=True)
        ]

    def look_at_outputs(self) -> None:
        """Note, as the backward begins, which outputs are gone."""
        gone = (place for place, ref in enumerate(self._storages) if ref is not None and ref() is None)
        self.released |= set(gone)


@dataclass(eq=False)
class Episode:
    """Runs that share memory, and the window in which they are measured, if they are.

    Attributes:
        is_eager: whether the graphs run as eager PyTorch does, so that its peak is learned.
        learns: whether there is more to learn: what the runs are given and give is noted.
        runs: the runs, in the order of their forwards.
    """

    is_eager: bool = False
    learns: bool = False
    runs: list[Run] = field(default_factory=list)
    _window: AllocatorWindow | None = None
    _thread: int = 0
    _end_calls: Callable[[], None] = lambda: None

    @property
    def is_settled(self) -> bool:
        """Whether nothing is measured or learned: only the sequence of runs is noted."""
        return self._window is None and not self.learns

    @property
    def is_measured(self) -> bool:
        """Whether a window is open."""
        return self._window is not None

    def measure(self, device: str, after_backward: Callable[[], object]) -> None:
        """Begin to measure; a function is called whenever a backward has returned."""
        self._window = AllocatorWindow(device)
        self._thread = threading.get_ident()
        self._end_calls = call_after_backwards(after_backward)

    def mark(self, name: str) -> None:
        """Set a mark in the window."""
        if self._window is not None:
            self._window.mark(name)

    def stop(self) -> list[Stretch]:
        """End the window; return its stretches up to the return of the last backward."""
        window, self._window = self._window, None
        if window is None:
            return []
        self._end_calls()
        found = window.stop()
        ends = [place for place, stretch in enumerate(found) if stretch.name == RETURNED]
        return found[: ends[-1]] if ends else found

    @property
    def can_stop_here(self) -> bool:
        """Whether this is the thread of the window."""
        return self._window is None or self._thread == threading.get_ident()

    def is_pending(self) -> bool:
        """Return True while the backward of some run may come."""
        for run in self.runs:  # noqa: SIM110  # each step asks: a generator costs more
            if run.is_pending():
                return True
        return False

    def last_waiting(self, graph: TracedGraph) -> Run | None:
        """Return the last run of a graph whose backward has not come."""
        for run in self.runs[::-1]:
            if run.graph is graph and not run.is_done:
                return run
        return None

    def note_backward(self, run: Run, name: str) -> None:
        """Note that a backward has reached a run."""
        self.mark(name)
        if not keeps_graph():
            run.is_done = True

    def watch(self, run: Run, heads: list[torch.Tensor]) -> None:
        """Notice when an eager backward reaches a run."""

        def reached(_: torch.Tensor) -> None:
            run.look_at_outputs()
            self.note_backward(run, TANGENT)

        for head in heads:
            if head.requires_grad:
                head.register_hook(reached)


def addresses(items: Sequence[Any]) -> tuple[int, ...]:
    """Return the addresses of the storages of tensors; 0 for what is no plain tensor."""
    return tuple(
        address_of(item.untyped_storage())
        if isinstance(item, torch.Tensor) and item.layout is torch.strided
        else 0
        for item in items
    )


def kept_bytes(stretches: list[Stretch], num_runs: int, before: list[int]) -> list[int]:
    """Return what the code between a forward and the next one keeps, for its own backward for instance."""
    pairs = zip(stretches, [*stretches[1:], None], strict=True)
    found = [
        max(after.start_bytes - stretch.start_bytes, 0) if after is not None and after.name == FORWARD else 0
        for stretch, after in pairs
        if stretch.name == LEFT
    ]
    found = found if len(found) == num_runs else [0] * num_runs
    return [max(pair) for pair in zip(found, before, strict=True)] if before else found


def outside_bytes(stretches: list[Stretch], num_runs: int, before: list[int]) -> list[int]:
    """Return what the code after each forward allocated, at most, as far as it was seen."""
    left = [stretch.peak_bytes - stretch.start_bytes for stretch in stretches if stretch.name == LEFT]
    found = left if len(left) == num_runs else [0] * num_runs
    return [max(pair) for pair in zip(found, before, strict=True)] if before else found


@dataclass(eq=False, slots=True)
class Routine:
    """A settled sequence of runs, and how far the program is in it.

    Args:
        runs: the runs of the sequence when it last came.
        receiver: a parameter that had no gradient whenever the sequence began, if there is one.
    """

    runs: Sequence[Run]
    receiver: weakref.ref[Any] | None = None
    _version: int = -1
    _waiting: list[weakref.ref[Any] | None] = field(default_factory=list)
    _before: list[tuple[TracedGraph, Listener | None, Listener | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for graph in {run.graph for run in self.runs}:
            self._before.append((graph, graph.on_begin, graph.on_end))
            graph.on_begin, graph.on_end = None, self._ended

    @classmethod
    def of(cls, runs: Sequence[Run], receiver: weakref.ref[Any] | None = None) -> Routine | None:
        """Return the routine of a sequence; None where a run left nothing by which the next one can be followed."""
        return cls(runs, receiver) if all(run.can_be_followed for run in runs) else None

    def takes(self, graph: TracedGraph) -> bool:
        """Return True if a graph that is about to run is the next of the sequence; each call asks."""
        place = len(self._waiting)
        if place and not self.is_pending():
            if place < len(self.runs):
                return False  # the sequence has ended early: it was another one
            self._waiting.clear()
            place = 0
        if place == len(self.runs) or self.runs[place].graph is not graph:
            return False
        if not place and self.receiver is not None and self._accumulates():
            return False
        graph.turn = self.runs[place].turn
        return True

    def _accumulates(self) -> bool:
        """Return True if a gradient is there as never before, of a step that goes on; else note that one begins."""
        item = None if self.receiver is None else self.receiver()
        if item is None:
            return False
        before, self._version = self._version, version_of(item)
        return item.grad is not None and before == self._version

    def goes_on(self) -> bool:
        """Return True if nothing that is trained was changed since the sequence began, as far as can be told."""
        item = None if self.receiver is None else self.receiver()
        return item is not None and version_of(item) == self._version

    def left(self, args: Sequence[Any], result: Any) -> None:
        """Note that the graph has run."""
        like = self.runs[len(self._waiting)]
        node = None if like.node is None else node_of_result(result[like.head])
        if type(node) is like.node:
            self._waiting.append(weakref.ref(node))
        elif like.node is None:
            self._waiting.append(None)
        else:  # the outputs are not what they were: look at each of them
            run = Run(like.graph, like.turn, ())
            run.left(args, result, None)
            self._waiting.append(run.token)

    def _ended(self, graph: TracedGraph) -> None:
        """Note that the backward of a graph has run."""
        if keeps_graph():
            return
        for place in range(len(self._waiting) - 1, -1, -1):
            if self._waiting[place] is not None and self.runs[place].graph is graph:
                self._waiting[place] = None
                return

    def is_pending(self) -> bool:
        """Return True while the backward of some run may come."""
        for waiting in self._waiting:  # noqa: SIM110  # each call asks: a generator costs more
            if waiting is not None and waiting() is not None:
                return True
        return False

    def forget(self) -> None:
        """Begin anew: a graph raised."""
        self._waiting.clear()

    def as_episode(self) -> Episode:
        """End the routine; return what the program is in the middle of, to go on as any other program."""
        for graph, on_begin, on_end in self._before:
            graph.on_begin, graph.on_end = on_begin, on_end
        runs = [
            Run(like.graph, like.turn, (), is_done=waiting is None, token=waiting)
            for like, waiting in zip(self.runs, self._waiting, strict=False)
        ]
        return Episode(runs=runs)
