"""Dropout as eager PyTorch computes it on the CPU.

torch.compile traces `dropout` as one fused op, which eager PyTorch runs on accelerators alone. On the CPU the numbers
that are kept are divided by what is kept; the fused op multiplies them by the inverse, which is rounded otherwise.
What follows draws the same numbers, keeps the same mask, and rounds as eager PyTorch does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from memwatch.encoding.values import leaves

if TYPE_CHECKING:
    from collections.abc import Callable

_FORWARD: Final = torch.ops.aten.native_dropout.default
_BACKWARD: Final = torch.ops.aten.native_dropout_backward.default


def _dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    if train is False or not 0 < p < 1 or x.dtype is torch.float64:
        both: tuple[torch.Tensor, torch.Tensor] = _FORWARD(x, p, train)
        return both
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p)
    return mask.to(x.dtype).div_(1 - p).mul_(x), mask


def _dropout_backward(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    if not scale or gradient.dtype is torch.float64:
        found: torch.Tensor = _BACKWARD(gradient, mask, scale)
        return found
    return mask.to(gradient.dtype).div_(1 / scale).mul_(gradient)


_ON_CPU: Final[dict[Any, Callable[..., Any]]] = {_FORWARD: _dropout, _BACKWARD: _dropout_backward}


def on_cpu(op: Any) -> Any:
    """Return what runs an op on the CPU with the results of eager PyTorch: itself, but for dropout."""
    return _ON_CPU.get(op, op)


def kernel_of(node: fx.Node) -> Any:
    """Return what runs a node with the results of eager PyTorch."""
    values = [item for item in leaves(node.meta.get("val")) if isinstance(item, torch.Tensor)]
    return on_cpu(node.target) if _drops(node) and values[0].device.type == "cpu" else node.target


def with_dropouts_of_eager(module: fx.GraphModule) -> fx.GraphModule:
    """Return a graph that computes dropout as eager PyTorch does; the same one where nothing is dropped."""
    if not any(map(_drops, module.graph.nodes)):
        return module
    copy = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        new = nodes[node] = copy.node_copy(node, nodes.__getitem__)
        new.target = kernel_of(node)
    return fx.GraphModule(module, copy)


def _drops(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in _ON_CPU
