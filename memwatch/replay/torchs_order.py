"""The order in which torch's own partition would run a step.

The partition says what the forward keeps. What it does not keep is computed again in the backward, right before its
use or, earlier, where torch's backward computes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.replay.fx import BOUNDARY
from memwatch.replay.step_parts import DONE, LEAVE, Part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.planner import Graph, OpSpec
    from memwatch.planner.graph import Name


def torchs_order(parts: Sequence[Part], graph: Graph, *, as_torch: bool) -> list[Name]:
    """Return the order; it may be one that is not valid.

    Args:
        parts: the graphs of the step.
        graph: its program.
        as_torch: whether to compute again where torch does, rather than right before the use.
    """
    writer = _Writer(parts, graph)
    for part in parts:
        writer.forward(part)
    for part in reversed(parts):
        if part.run.num_fwd_outputs is not None:
            writer.backward(part, as_torch=as_torch)
    return writer.order


class _Writer:
    """Writes the order op by op, and knows which buffers are there."""

    def __init__(self, parts: Sequence[Part], graph: Graph) -> None:
        self.order: list[Name] = []
        self._ran: set[Name] = set()
        self._early = {spec.name: spec for part in parts for spec in part.early}
        self._late = {spec.name: spec for part in parts for spec in part.late}
        self._maker = {
            name: spec for part in parts for spec in (*part.early, *part.late) for name in spec.makes
        }
        self._there: set[Name] = {
            name for part in parts for name in (*part.reader.inputs, *part.reader.tangents)
        }
        self._there.update(name for spec in self._early.values() for name in spec.writes)
        self._again = {name for name, may in zip(graph.op_names, graph.op_recomputable, strict=True) if may}

    def forward(self, part: Part) -> None:
        """Write a forward; what it does not keep is gone after it."""
        self.order += [spec.name for spec in part.early]
        self.order.append(part.prefix + LEAVE)
        for node, names in part.reader.buffers.items():
            if node.name in part.run.saved:
                self._there.update(names)

    def backward(self, part: Part, *, as_torch: bool) -> None:
        """Write a backward, with what is computed again in it."""
        self.order.append(part.prefix + BOUNDARY)
        for name in part.run.torchs_backward if as_torch else ():
            spec = self._late.get(part.prefix + name) or self._early.get(part.prefix + name)
            if spec is not None:
                for made in spec.makes:
                    self._need(made)
        for spec in part.late:
            self._run(spec)
        if part.added:
            self.order.append(part.prefix + DONE)

    def _need(self, name: Name) -> None:
        spec = self._maker.get(name)
        if name in self._there or spec is None:
            return
        if spec.name in self._late or spec.name in self._again:
            self._run(spec)

    def _run(self, spec: OpSpec) -> None:
        if spec.name in self._ran:
            return
        if spec.name in self._late:
            self._ran.add(spec.name)
        for read in (*spec.reads, *spec.writes):
            self._need(read)
        self.order.append(spec.name)
        self._there.update(spec.makes)
