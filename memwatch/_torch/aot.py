"""AOTAutograd, for the backend of torch.compile. Importing this file imports torch's compiler.

| torch | here |
| --- | --- |
| torch._dynamo.backends.common.aot_autograd | aot_autograd |
| torch._dynamo.backends.debugging.boxed_nop | boxed_nop |
| torch._functorch.partitioners._extract_fwd_bwd_modules | extract_forward_and_backward |
| torch._functorch.partitioners.default_partition | default_partition |
"""

from __future__ import annotations

from typing import Any, Final

from memwatch._torch.lookup import Part

_backend: Final = Part('torch.compile(backend="memwatch") does not work')
aot_autograd: Final[Any] = _backend.required("torch._dynamo.backends.common.aot_autograd")
"""Make a backend of dynamo out of compilers for the forward and the backward graph."""
boxed_nop: Final[Any] = _backend.required("torch._dynamo.backends.debugging.boxed_nop")
"""A compiler that runs a graph as it is."""
extract_forward_and_backward: Final[Any] = _backend.required(
    "torch._functorch.partitioners._extract_fwd_bwd_modules"
)
"""Cut a joint graph in two, given what the forward hands to the backward."""
default_partition: Final[Any] = _backend.required("torch._functorch.partitioners.default_partition")
"""Cut a joint graph in two as eager autograd does."""
