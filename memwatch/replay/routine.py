"""The routine: a settled sequence of runs, followed at next to no cost.

Most programs make the same step over and over. Once its plan was measured, all that a call asks is whether the program
still does the same: whether this graph is the next of the sequence, while runs before it wait for their backward.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memwatch._torch.autograd import node_of_result
from memwatch._torch.engine import keeps_graph
from memwatch._torch.tensors import version_of
from memwatch.replay.episode import Episode, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.replay.traced_graph import Listener, TracedGraph


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
