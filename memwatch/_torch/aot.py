"""AOTAutograd, for the backend of torch.compile. Importing this file imports torch's compiler.

| torch | here |
| --- | --- |
| torch._dynamo.backends.common.aot_autograd | aot_autograd |
| torch._dynamo.backends.debugging.boxed_nop | boxed_nop |
| torch.fx.graph._BoxedCodeGen, torch.fx._lazy_graph_module._LazyGraphModule.force_recompile | boxed_forward(module) |
| torch._functorch.compile_utils.fx_graph_cse | without_repeats |
| TracingContext.try_get().fw_metadata.saved_tensor_is_graph_input | let_saved_tensors_vary(most) |
| torch._functorch.partitioners._extract_fwd_bwd_modules | extract_forward_and_backward |
| torch._functorch.partitioners.default_partition | default_partition |
| torch._functorch.partitioners.min_cut_rematerialization_partition | min_cut_partition |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from memwatch._torch.lookup import Part

__all__ = [
    "aot_autograd",
    "boxed_forward",
    "boxed_nop",
    "default_partition",
    "extract_forward_and_backward",
    "let_saved_tensors_vary",
    "min_cut_partition",
    "without_repeats",
]

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx
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
    without_repeats = fx_graph_cse
else:
    _backend = Part('torch.compile(backend="memwatch") does not work')
    aot_autograd = _backend.required("torch._dynamo.backends.common.aot_autograd")
    """Make a backend of dynamo out of compilers for the forward and the backward graph."""
    boxed_nop = _backend.required("torch._dynamo.backends.debugging.boxed_nop")
    """A compiler that runs a graph as it is."""
    extract_forward_and_backward = _backend.required("torch._functorch.partitioners._extract_fwd_bwd_modules")
    """Cut a joint graph in two, given what the forward hands to the backward."""
    default_partition = _backend.required("torch._functorch.partitioners.default_partition")
    """Cut a joint graph in two as eager autograd does."""
    min_cut_partition = _backend.required("torch._functorch.partitioners.min_cut_rematerialization_partition")
    """Cut a joint graph in two as torch's own compiler does, within the budgets that the program gives its regions."""
    without_repeats = _backend.required("torch._functorch.compile_utils.fx_graph_cse")
    """Return a graph in which what is computed twice from the same values is computed once."""
    TracingContext = _backend.required("torch._guards.TracingContext")


_boxed: Final = Part("planned graphs are called through two functions more")
_codegen: Final[Any] = _boxed.take("torch.fx.graph._BoxedCodeGen", None)
_force_recompile: Final[Any] = _boxed.take(
    "torch.fx._lazy_graph_module._LazyGraphModule.force_recompile", None
)


def boxed_forward(module: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """Return the forward of a graph, which takes a list of arguments and empties it.

    It is what `boxed_nop` calls through functions of its own. A module that writes its code when it is first called
    would go on asking in each call whether it has.
    """
    if not _boxed.complete:
        found: Callable[[list[Any]], Any] = boxed_nop(module, [])
        return found
    module.graph.set_codegen(_codegen())
    module.recompile()
    _force_recompile(module)
    return module.forward


def let_saved_tensors_vary(most: int) -> None:
    """Let the forward that is being compiled save other tensors, and more, than its graph says: `most` at most.

    From torch 2.15 on AOTAutograd notes of each tensor that the graph saves whether it is an input, and saves an input
    that is a view as it is. Nothing else may be saved like that: an output that is a view would keep itself alive. So
    all are noted as other tensors, which torch before 2.15 takes all of them for.
    """
    context = TracingContext.try_get()
    is_input = getattr(context and context.fw_metadata, "saved_tensor_is_graph_input", None)
    if is_input is not None:
        is_input[:] = [False] * most
