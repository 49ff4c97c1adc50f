"""torch's inductor, as a compiler of single graphs. Nothing here imports it before a graph is compiled.

| torch | here |
| --- | --- |
| torch._inductor.compile_fx.compile_fx_inner | compiled_by_inductor(module, is_backward) |
| torch._inductor.config.patch | (there) |
| torch._guards.TracingContext, torch._guards.tracing | (there) |
| torch._guards.detect_fake_mode | (there) |
| torch._inductor.decomposition.select_decomp_table | decompositions() |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from memwatch._torch.lookup import Part

if TYPE_CHECKING:
    from collections.abc import Callable

_inductor: Final = Part("the backend memwatch has no inner='inductor'")
_AS_PLANNED: Final = {
    # its own orders would undo the plan
    "reorder_for_peak_memory": False,
    "reorder_for_locality": False,
    # what the forward saves has the strides that the backward was planned with
    "layout_optimization": False,
    # the random numbers of eager PyTorch
    "fallback_random": True,
}
"""Options of inductor that a planned graph is compiled with."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return how inductor wants ops to be taken apart while a graph is traced."""
    table: dict[Any, Callable[..., Any]] = _inductor.required(
        "torch._inductor.decomposition.select_decomp_table"
    )()
    return table


def compiled_by_inductor(module: fx.GraphModule, *, is_backward: bool) -> Callable[[list[Any]], Any]:
    """Return a graph of ATen ops, compiled; it takes a list of arguments, which it empties.

    The module stays as it is. Its nodes hold their fake values.
    """
    compile_graph = _inductor.required("torch._inductor.compile_fx.compile_fx_inner")
    config = _inductor.required("torch._inductor.config")
    context = _inductor.required("torch._guards.TracingContext")
    tracing = _inductor.required("torch._guards.tracing")
    fake_mode_of = _inductor.required("torch._guards.detect_fake_mode")
    _inductor.require()
    copy = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        nodes[node] = copy.node_copy(node, nodes.__getitem__)
    end = copy.output_node()
    outputs = end.args[0] if isinstance(end.args[0], (list, tuple)) else end.args
    end.meta["user_visible_output_idxs"] = [
        place for place, item in enumerate(outputs) if isinstance(item, fx.Node)
    ]
    inputs = [node.meta["val"] for node in copy.find_nodes(op="placeholder")]
    options = {name: value for name, value in _AS_PLANNED.items() if hasattr(config, name)}
    tensors = [item for item in inputs if isinstance(item, torch.Tensor)]
    # a context of its own: that of the compilation under way belongs to another graph
    with config.patch(options), tracing(context(fake_mode_of(tensors))):
        found: Callable[[list[Any]], Any] = compile_graph(
            fx.GraphModule(module, copy), inputs, is_backward=is_backward
        )
    return found
