"""Sizes of tensors that a trace knows as symbols.

This is a file of its own because importing it imports sympy, which a recording does not need.

| torch | here |
| --- | --- |
| torch.fx.experimental.symbolic_shapes.optimization_hint, in torch 2.11 hint_int | size_hint |
| size.node.expr | symbol_of(size), size_at(size, values) |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch.fx.experimental import symbolic_shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_module: Any = symbolic_shapes
size_hint: Final[Callable[..., int]] = (
    _module.optimization_hint if hasattr(_module, "optimization_hint") else _module.hint_int
)
"""Return the value that a symbol had when it was traced, without a guard; `fallback` if it had none."""


def symbol_of(size: Any) -> Any:
    """Return the symbol that a symbolic number is; None for a formula."""
    formula = size.node.expr
    return formula if getattr(formula, "is_symbol", False) else None


def size_at(size: Any, values: Mapping[Any, int]) -> int | None:
    """Return a symbolic number for values of its symbols; None where one of them has no value."""
    found = size.node.expr.xreplace(values)
    return int(found) if isinstance(found, int) or found.is_number else None
