"""What a step consists of: runs of graphs, and what each of them adds to the step's program."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.traced_graphs import size_at
from memwatch.replay.fx import GraphReader, hinted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from memwatch.encoding.values import Value
    from memwatch.planner import OpSpec
    from memwatch.planner.op import Name

LEAVE: Final = "your code after the forward"
"""Name of the op that stands for it: it reads the forward's outputs."""
KEPT: Final = "tensors that your code after the forward keeps"
"""Name of the buffer that stands for it."""
DONE: Final = "your code after the backward"
"""Name of the op that stands for it: it adds up gradients."""


@dataclass(frozen=True, eq=False)
class GraphRun:
    """A graph that takes part in a step.

    Attributes:
        module: the joint graph of forward and backward, or a graph without backward.
        num_fwd_outputs: how many outputs belong to the forward; None without backward.
        saved: names of the nodes that torch's own partition keeps for the backward.
        torchs_backward: names of the nodes that its backward runs, in order.
        values: symbol -> its value.
        inputs, outputs: addresses of the storages it was given and gave; empty if not known.
        released: which outputs the program no longer holds when the backward begins, as far as it was seen.
        outside_bytes: what the code after its forward allocated beyond the graph's own storages, at most.
        kept_bytes: what of that was still there when the next forward began; its own backward comes before this one.
    """

    module: fx.GraphModule
    num_fwd_outputs: int | None
    saved: frozenset[str]
    torchs_backward: tuple[str, ...] = ()
    values: Mapping[Any, int] = field(default_factory=dict)
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    released: frozenset[int] = frozenset()
    outside_bytes: int = 0
    kept_bytes: int = 0

    def size_of(self, size: Value) -> int:
        """Return a size as a number."""
        if isinstance(size, int):
            return size
        found = size_at(size, self.values) if self.values else None
        return hinted(size) if found is None else found


@dataclass
class Part:
    """What one graph adds to the program.

    Attributes:
        run: the graph.
        reader: its nodes as ops and buffers.
        prefix: what the names of its ops begin with.
        early, late: ops of its forward, and of its backward.
        given: buffers that the forward gives to the program.
        released: those of them that the program no longer holds when the backward begins.
        flowing: those of them that a later graph is given.
        added: gradients that are added to those of an earlier backward.
    """

    run: GraphRun
    reader: GraphReader
    prefix: str
    early: list[OpSpec]
    late: list[OpSpec]
    given: list[str]
    released: set[str]
    flowing: set[str] = field(default_factory=set)
    added: set[str] = field(default_factory=set)


def holders(part: Part) -> dict[Name, str]:
    """Return the buffers of a graph that can be moved out and back -> the name of the node that holds each.

    What the program or another graph is given stays: they hold it. A copy of what is written later would be old.
    """
    ops = (*part.early, *part.late)
    fixed = {*part.given, *part.reader.keep, *part.flowing, *(name for spec in ops for name in spec.writes)}
    nodes = {node.name: node for node in part.run.module.graph.nodes}
    found: dict[Name, str] = {}
    for spec in ops:
        node = nodes[str(spec.name)[len(part.prefix) :]]
        items = [user for user in node.users if user.target is operator.getitem]
        for name in spec.makes:
            own = [
                each for each in (node, *items) if part.reader.buffers[each] == (name,) and _is_plain(each)
            ]
            if name not in fixed and len(own) == 1:
                found[name] = own[0].name
    return found


def _is_plain(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return not (value.is_conj() or value.is_neg())
