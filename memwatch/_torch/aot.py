"""AOTAutograd, for the backend of torch.compile. Importing this file imports torch's compiler.

| torch | here |
| --- | --- |
| torch._dynamo.backends.common.aot_autograd | aot_autograd |
| torch._dynamo.backends.debugging.boxed_nop | boxed_nop |
| torch._functorch.compile_utils.fx_graph_cse | without_repeats |
| TracingContext.try_get().fw_metadata.saved_tensor_is_graph_input | let_saved_tensors_vary(most) |
| torch._functorch.partitioners._extract_fwd_bwd_modules | extract_forward_and_backward |
| torch._functorch.partitioners.default_partition | default_partition |
| torch._functorch.partitioners.min_cut_rematerialization_partition | min_cut_partition |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch._torch.lookup import Part

__all__ = [
    "aot_autograd",
    "boxed_nop",
    "default_partition",
    "extract_forward_and_backward",
    "let_saved_tensors_vary",
    "min_cut_partition",
    "without_repeats",
]

if TYPE_CHECKING:
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
