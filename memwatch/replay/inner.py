"""What runs a planned graph: the kernels of eager PyTorch one by one, or what inductor makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from memwatch._torch.aot import boxed_forward, compiled_by_inductor
from memwatch.replay.draws import with_dropouts_of_eager

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

    Boxed = Callable[[list[Any]], Sequence[Any]]


class Compiler(Protocol):
    """Makes a function of a planned graph, which takes a list of arguments and empties it."""

    def __call__(self, module: fx.GraphModule, *, is_backward: bool) -> Boxed:
        """Return the function."""


def with_kernels(module: fx.GraphModule, *, is_backward: bool) -> Boxed:
    """Return a graph that calls the kernels of eager PyTorch in the planned order."""
    return boxed_forward(with_dropouts_of_eager(module))


def with_inductor(module: fx.GraphModule, *, is_backward: bool) -> Boxed:
    """Return a graph that inductor compiled: it fuses ops, but keeps what is saved and what is computed again.

    Inductor writes code for the sizes of one shape. A graph with symbolic sizes calls kernels.
    """
    values = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
    if any(map(_is_symbolic, values)):
        return with_kernels(module, is_backward=is_backward)
    found: Boxed = compiled_by_inductor(module, is_backward=is_backward)
    return found


def _is_symbolic(value: Any) -> bool:
    sizes = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
    return any(isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) for size in sizes)
