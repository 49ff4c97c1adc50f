"""AOTAutograd, for the backend of torch.compile. Importing this file imports torch's compiler.

| torch | here |
| --- | --- |
| torch._dynamo.backends.common.aot_autograd | aot_autograd |
| torch._dynamo.backends.debugging.boxed_nop | boxed_nop |
| torch._functorch.compile_utils.fx_graph_cse | without_repeats |
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
