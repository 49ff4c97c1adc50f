"""What torch knows of an overload: `torch.ops.aten.add.Tensor` and the like.

| torch | here |
| --- | --- |
| torch._ops.OpOverload | OpOverload |
| torch._ops.HigherOrderOperator | HigherOrderOperator |
| overload._schema | schema_of(overload) |
| overload._op | call_of(overload) |
| overload._opname | base_name_of(overload) |
| overload._overloadname | overload_name_of(overload) |
| torch._C._should_allow_numbers_as_tensors | takes_numbers_as_tensors |
| "_c10d_functional", "_c10d_functional_autograd" | COLLECTIVE_NAMESPACES |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.lookup import NoSuchClass, Part

__all__ = [
    "COLLECTIVE_NAMESPACES",
    "HigherOrderOperator",
    "OpOverload",
    "base_name_of",
    "call_of",
    "overload_name_of",
    "schema_of",
    "takes_numbers_as_tensors",
]

if TYPE_CHECKING:
    from collections.abc import Callable

COLLECTIVE_NAMESPACES: Final = frozenset(
    {"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional"}
)
"""Namespaces of the ops that communicate between ranks."""

if TYPE_CHECKING:
    from torch._ops import HigherOrderOperator, OpOverload
else:
    OpOverload = Part("the class of overloads is taken from a common op").take(
        "torch._ops.OpOverload", type(torch.ops.aten.detach.default)
    )
    """The class of overloads."""
    HigherOrderOperator = Part("operators with subgraphs are refused by the planner").take(
        "torch._ops.HigherOrderOperator", NoSuchClass
    )
    """The class of operators that take functions or graphs, such as `torch.cond`."""


def _names(overload: Any) -> tuple[str, str]:
    base, _, name = str(overload.name()).partition("::")[2].partition(".")
    return base, name


def _base_name(overload: Any) -> str:
    return _names(overload)[0]


def _overload_name(overload: Any) -> str:
    return _names(overload)[1] or "default"


def _registered_schema(overload: Any) -> Any:
    return _get_schema(str(overload.name()).partition(".")[0], overload.name().partition(".")[2])


_get_schema: Final = Part("memwatch cannot read the arguments of ops, so it cannot record").required(
    "torch._C._get_schema"
)
schema_of: Final[Callable[[Any], Any]] = Part("schemas of ops come from the registry").reader(
    "torch.ops.aten.detach.default._schema", _registered_schema
)
"""Return the schema of an overload: its arguments, with what it writes, and its results."""


def _itself(overload: Any) -> Any:
    return overload


call_of: Final[Callable[[Any], Any]] = Part("ops are called through one more layer of Python").reader(
    "torch.ops.aten.detach.default._op", _itself
)
"""Return the C function that runs an overload; calling it is cheaper than calling the overload."""


_names_of: Final = Part("the name of an op is cut out of its public, qualified name")
base_name_of: Final[Callable[[Any], str]] = _names_of.reader(
    "torch.ops.aten.detach.default._opname", _base_name
)
"""Return the name of an overload without namespace and overload: ``add`` of ``aten::add.Tensor``."""
overload_name_of: Final[Callable[[Any], str]] = _names_of.reader(
    "torch.ops.aten.detach.default._overloadname", _overload_name
)
"""Return the name of the overload alone: ``Tensor`` of ``aten::add.Tensor``."""

takes_numbers_as_tensors: Final[Callable[[str], bool]] = Part(
    "ops that torch.jit traced with a number for a tensor may fail while they are recorded"
).take("torch._C._should_allow_numbers_as_tensors", lambda name: True)
"""Return True if the op of this name takes numbers where its schema wants tensors."""
