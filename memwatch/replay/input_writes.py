"""What a traced graph writes into its inputs, at the place where the program writes it.

AOTAutograd traces a program without its in-place ops. What the program wrote it copies into the inputs at the very end,
after the backward even where the copy belongs to the forward. Each new value would wait until then: so the copies go to
where the new value is there and nobody reads the old one any more.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Final

import torch

from memwatch._torch.tensors import address_of
from memwatch._torch.traced_graphs import is_kept_in_forward
from memwatch.encoding.values import leaves
from memwatch.replay.batch_norms import write_statistics
from memwatch.replay.fx import crossing_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import fx

_COPY: Final = torch.ops.aten.copy_.default


def place_writes(graph: fx.Graph, *, has_backward: bool) -> None:
    """Let a traced graph write its inputs where the program does."""
    write_statistics(graph)
    end = crossing_node(graph) if has_backward else graph.output_node()
    nodes = list(graph.nodes)
    first = next(node for node in nodes if node.op != "placeholder")
    place = {node: number for number, node in enumerate(nodes)}
    copies = [node for node in nodes if node.target is _COPY and node.args[0].op == "placeholder"]
    for copy in copies:
        if has_backward and not is_kept_in_forward(copy):
            continue
        written, source = copy.args[:2]
        before = [place[user] for user in _readers(nodes[: place[end]], written)]
        last = nodes[max([place[source], *before])]
        if place[last] >= place[end]:
            end.prepend(copy)
        elif last.op == "placeholder":
            first.prepend(copy)
        else:
            _after_items(last).append(copy)


def _after_items(node: fx.Node) -> fx.Node:
    """Return the last of the nodes that unpack the results of a node right behind it."""
    while node.next.target is operator.getitem:
        node = node.next
    return node


def _readers(nodes: list[fx.Node], written: fx.Node) -> Iterator[fx.Node]:
    """Yield the nodes that use memory of a node, by way of views too."""
    storages = set(_storages(written))
    for node in nodes:
        if any(storages & set(_storages(used)) for used in node.all_input_nodes):
            yield node


def _storages(node: fx.Node) -> Iterator[int]:
    for item in leaves(node.meta.get("val")):
        if isinstance(item, torch.Tensor) and item.layout is torch.strided:
            yield address_of(item.untyped_storage())
