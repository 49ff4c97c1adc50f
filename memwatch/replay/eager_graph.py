"""A graph of dynamo, run as eager PyTorch runs the program.

The op that stands for a checkpointed region leaves it to the compiler to draw the same random numbers again. Eager
PyTorch compiles nothing: there the region is checkpointed as the program says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx
from torch.utils.checkpoint import checkpoint

from memwatch._torch.dynamo_checkpoint import checkpointed_region, context_of, split_arguments

if TYPE_CHECKING:
    from collections.abc import Callable


def as_in_eager(module: fx.GraphModule) -> fx.GraphModule:
    """Return the graph with its checkpointed regions as eager PyTorch runs them; the same one where it has none."""
    if checkpointed_region is None or not _has_regions(module):
        return module
    graph = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        new = nodes[node] = graph.node_copy(node, nodes.__getitem__)
        if node.target is checkpointed_region:
            new.target = _checkpointed
    found = fx.GraphModule(module, graph)
    found.meta.update(module.meta)
    for name, child in module.named_children():
        if isinstance(child, fx.GraphModule):
            setattr(found, name, as_in_eager(child))
    return found


def _has_regions(module: fx.GraphModule) -> bool:
    graphs = (child.graph for child in module.modules() if isinstance(child, fx.GraphModule))
    return any(node.target is checkpointed_region for graph in graphs for node in graph.nodes)


def _checkpointed(region: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    options, own = split_arguments(kwargs)
    context: Callable[[], Any] | None = context_of(region)
    if context is not None:
        options["context_fn"] = context
    return checkpoint(region, *args, **{**options, "use_reentrant": False}, **own)
