"""The compilers behind torch.compile: AOTAutograd and inductor.

Importing this file imports AOTAutograd, which takes a second. Inductor's compiler is imported by the first call of
`compiled_by_inductor`.

| torch | here |
| --- | --- |
| torch._dynamo.backends.common.aot_autograd | aot_autograd |
| torch._dynamo.backends.debugging.boxed_nop | boxed_nop |
| torch.fx.graph._BoxedCodeGen, torch.fx._lazy_graph_module._LazyGraphModule.force_recompile | boxed_forward(module) |
| torch._functorch.compile_utils.fx_graph_cse | without_common_subexpressions |
| TracingContext.try_get().fw_metadata.saved_tensor_is_graph_input | let_saved_tensors_vary(most) |
| torch._functorch.partitioners._extract_fwd_bwd_modules | extract_forward_and_backward |
| torch._functorch.partitioners.default_partition | default_partition |
| torch._functorch.partitioners.min_cut_rematerialization_partition | min_cut_partition |
| torch._inductor.compile_fx.compile_fx_inner | compiled_by_inductor(module, is_backward) |
| torch._inductor.config.patch | (there) |
| torch._guards.TracingContext, torch._guards.tracing | (there) |
| torch._guards.detect_fake_mode | (there) |
| torch._inductor.decomposition.select_decomp_table | decompositions() |
| OpOverload.py_kernels, OpOverload._dispatch_cache of `upsample_bilinear2d` and the like | eager_interpolation() |
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from memwatch._torch.lookup import Part

__all__ = [
    "aot_autograd",
    "boxed_forward",
    "boxed_nop",
    "compiled_by_inductor",
    "decompositions",
    "default_partition",
    "eager_interpolation",
    "extract_forward_and_backward",
    "let_saved_tensors_vary",
    "min_cut_partition",
    "without_common_subexpressions",
]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop
    from torch._functorch.compile_utils import fx_graph_cse
    from torch._functorch.partitioners import (
        _extract_fwd_bwd_modules,
        default_partition,
        min_cut_rematerialization_partition,
    )
    from torch._guards import TracingContext

    extract_forward_and_backward = _extract_fwd_bwd_modules
    min_cut_partition = min_cut_rematerialization_partition
    without_common_subexpressions = fx_graph_cse
else:
    _backend = Part('torch.compile(backend="memwatch") does not work')
    aot_autograd = _backend.required("torch._dynamo.backends.common.aot_autograd")
    """Make a dynamo backend of two compilers, for the forward and the backward graph."""
    boxed_nop = _backend.required("torch._dynamo.backends.debugging.boxed_nop")
    """A compiler that runs a graph as it is."""
    extract_forward_and_backward = _backend.required("torch._functorch.partitioners._extract_fwd_bwd_modules")
    """Cut a joint graph in two, given the values that the forward saves for the backward."""
    default_partition = _backend.required("torch._functorch.partitioners.default_partition")
    """Cut a joint graph in two as eager autograd does."""
    min_cut_partition = _backend.required("torch._functorch.partitioners.min_cut_rematerialization_partition")
    """Cut a joint graph in two as torch's own compiler does, within the budgets that the program gives its regions."""
    without_common_subexpressions = _backend.required("torch._functorch.compile_utils.fx_graph_cse")
    """Return a graph without repeated computations of the same values."""
    TracingContext = _backend.required("torch._guards.TracingContext")


_boxed: Final = Part("planned graphs are called through two functions more")
_codegen: Final[Any] = _boxed.take("torch.fx.graph._BoxedCodeGen", None)
_force_recompile: Final[Any] = _boxed.take(
    "torch.fx._lazy_graph_module._LazyGraphModule.force_recompile", None
)


def boxed_forward(module: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """Return the forward of a graph, which takes a list of arguments and empties it.

    `boxed_nop` calls the same forward through functions of its own. A module that writes its code at the first call
    would check in every later call whether it has done so.
    """
    if not _boxed.complete:
        found: Callable[[list[Any]], Any] = boxed_nop(module, [])
        return found
    module.graph.set_codegen(_codegen())
    module.recompile()
    _force_recompile(module)
    return module.forward


def let_saved_tensors_vary(most: int) -> None:
    """Let the forward that is being compiled save up to `most` tensors, and other ones than its graph says.

    From torch 2.15 on, AOTAutograd marks the saved tensors that are inputs, and saves an input that is a view as it is.
    An output that is a view would keep itself alive this way. So this marks no tensor as an input, as torch did before
    2.15.
    """
    context = TracingContext.try_get()
    is_input = getattr(context and context.fw_metadata, "saved_tensor_is_graph_input", None)
    if is_input is not None:
        is_input[:] = [False] * most


_inductor: Final = Part("the backend memwatch has no inner='inductor'")
_AS_PLANNED: Final = {
    # its own orders would undo the plan
    "reorder_for_peak_memory": False,
    "reorder_for_locality": False,
    # the tensors that the forward saves must have the strides that the backward was planned with
    "layout_optimization": False,
    # the random numbers of eager PyTorch
    "fallback_random": True,
}
"""Options of inductor that a planned graph is compiled with."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return inductor's table of decompositions for tracing."""
    table: dict[Any, Callable[..., Any]] = _inductor.required(
        "torch._inductor.decomposition.select_decomp_table"
    )()
    return table


def compiled_by_inductor(module: fx.GraphModule, *, is_backward: bool) -> Callable[[list[Any]], Any]:
    """Return a compiled graph of ATen ops. It takes a list of arguments and empties it.

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
    # a new context, because the context of the running compilation belongs to another graph
    with config.patch(options), tracing(context(fake_mode_of(tensors))):
        found: Callable[[list[Any]], Any] = compile_graph(
            fx.GraphModule(module, copy), inputs, is_backward=is_backward
        )
    return found


_INTERPOLATIONS: Final = (
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
)  # fmt: skip
"""Ops for which torch.compile has functions in Python. Without these it uses the ops of eager PyTorch."""
_part: Final = Part("interpolation under the backend memwatch is close to eager PyTorch, but not equal")
_KEYS: Final = [
    key
    for name in ("Autograd", "CompositeImplicitAutograd")
    if (key := _part.take(f"torch._C.DispatchKey.{name}", None)) is not None
]
"""The dispatch keys under which they are registered."""


@contextlib.contextmanager
def eager_interpolation() -> Iterator[None]:
    """Let traces in the block use the interpolation ops of eager PyTorch.

    The compiler would split an interpolation into many ops, whose sums are rounded differently. For nearest neighbours
    the sums are equal. But the gradient of a channels_last input loses that layout, and later sums over it are rounded
    differently.
    """
    taken: list[tuple[Any, dict[Any, Any]]] = []
    try:
        for overload in _overloads():
            kernels: dict[Any, Any] = overload.py_kernels
            found: dict[Any, Any] = {}
            taken.append((overload, found))
            for key in _KEYS:
                if key in kernels:
                    found[key] = kernels.pop(key)
            overload._dispatch_cache.clear()
        yield
    finally:
        for overload, found in taken:
            overload.py_kernels.update(found)
            overload._dispatch_cache.clear()


def _overloads() -> list[Any]:
    packets = (getattr(torch.ops.aten, kind, None) for kind in _INTERPOLATIONS)
    pairs = itertools.product(packets, ("default", "vec"))
    found = [getattr(packet, name, None) for packet, name in pairs]
    return [each for each in found if hasattr(each, "py_kernels") and hasattr(each, "_dispatch_cache")]
