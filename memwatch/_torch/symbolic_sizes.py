"""Sizes of tensors that a trace knows as symbols; importing this file imports sympy.

| torch | here |
| --- | --- |
| torch.fx.experimental.symbolic_shapes.optimization_hint, in torch 2.11 hint_int | size_hint |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch.fx.experimental import symbolic_shapes

if TYPE_CHECKING:
    from collections.abc import Callable

_module: Any = symbolic_shapes
size_hint: Final[Callable[..., int]] = (
    _module.optimization_hint if hasattr(_module, "optimization_hint") else _module.hint_int
)
"""Return the value that a symbol had when it was traced, without a guard; `fallback` if it had none."""
