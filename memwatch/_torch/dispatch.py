"""The dispatcher: operator overloads, the free dispatch key, kernels on it, and guards that skip keys.

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
| torch._C._dispatch_key_parse("Fake") | FREE_KEY (None if the key does not work) |
| torch._C._dispatch_keyset_full_after(key) | BELOW_FREE_KEY |
| torch._C._dispatch_tls_set_dispatch_key_included | include_key |
| torch._C._dispatch_tls_is_dispatch_key_included | is_key_included |
| torch._C._dispatch_tls_set_dispatch_key_excluded | exclude_key |
| torch._C._dispatch_get_all_op_names | op_names |
| torch._C._jit_get_all_schemas | schemas |
| torch._C._dispatch_library("IMPL", space, "", file, 0) | kernel_library(space, file) |
| torch.library.Library._destroy | destroy_library(library) |
| torch._ops (its function `key_extractor` is patched) | OPS_MODULE |
| torch._C._AutoDispatchBelowADInplaceOrView, _AutoDispatchBelowAutograd | below_inplace_or_view, below_autograd |
| torch._C._DisableAutocast | disable_autocast |
| torch._C._set_grad_enabled | set_grad_enabled |
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.lookup import NoSuchClass, Part

__all__ = [
    "BELOW_FREE_KEY",
    "COLLECTIVE_NAMESPACES",
    "FREE_KEY",
    "FREE_KEY_NAME",
    "OPS_MODULE",
    "HigherOrderOperator",
    "OpOverload",
    "base_name_of",
    "below_autograd",
    "below_inplace_or_view",
    "call_of",
    "destroy_library",
    "disable_autocast",
    "exclude_key",
    "include_key",
    "is_key_included",
    "kernel_library",
    "op_names",
    "overload_name_of",
    "schema_of",
    "schemas",
    "set_grad_enabled",
    "takes_numbers_as_tensors",
]

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    Guard = Callable[[], AbstractContextManager[Any]]

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
"""Return the schema of an overload: its arguments, with marks for those it writes, and its results."""


def _itself(overload: Any) -> Any:
    return overload


call_of: Final[Callable[[Any], Any]] = Part("ops are called through one more layer of Python").reader(
    "torch.ops.aten.detach.default._op", _itself
)
"""Return the C function that runs an overload. Calling it is faster than calling the overload."""


_names_of: Final = Part("the name of an op is cut out of its public, qualified name")
base_name_of: Final[Callable[[Any], str]] = _names_of.reader(
    "torch.ops.aten.detach.default._opname", _base_name
)
"""Return the base name of an overload: ``add`` of ``aten::add.Tensor``."""
overload_name_of: Final[Callable[[Any], str]] = _names_of.reader(
    "torch.ops.aten.detach.default._overloadname", _overload_name
)
"""Return the name of the overload alone: ``Tensor`` of ``aten::add.Tensor``."""

takes_numbers_as_tensors: Final[Callable[[str], bool]] = Part(
    "ops that torch.jit traced with a number for a tensor may fail while they are recorded"
).take("torch._C._should_allow_numbers_as_tensors", lambda name: True)
"""Return True if the op of this name takes numbers where its schema wants tensors."""


FREE_KEY_NAME: Final = "Fake"
"""The functionality key below autograd that torch does not use. A kernel on it sees every op."""

_key: Final = Part("ops are seen through a dispatch mode, because no free dispatch key works")
_parse_key: Final[Callable[[str], Any]] = _key.take("torch._C._dispatch_key_parse", lambda name: None)
_full_after: Final[Callable[[Any], Any]] = _key.take("torch._C._dispatch_keyset_full_after", lambda key: None)
include_key: Final[Callable[[Any, bool], None]] = _key.take(
    "torch._C._dispatch_tls_set_dispatch_key_included", lambda key, on: None
)
"""Include a key in this thread, or stop including it."""
is_key_included: Final[Callable[[Any], bool]] = _key.take(
    "torch._C._dispatch_tls_is_dispatch_key_included", lambda key: False
)
"""Return True if a key is included in this thread."""
exclude_key: Final[Callable[[Any, bool], None]] = _key.take(
    "torch._C._dispatch_tls_set_dispatch_key_excluded", lambda key, on: None
)
"""Exclude a key in this thread, or stop excluding it."""
op_names: Final[Callable[[], list[str]]] = _key.take("torch._C._dispatch_get_all_op_names", list)
"""Return the qualified name of every overload that is defined, as ``aten::add.Tensor``."""
schemas: Final[Callable[[], list[Any]]] = Part("").take("torch._C._jit_get_all_schemas", list)
"""Return the schema of every defined overload, without making objects of `torch.ops`."""
_library: Final[Callable[..., Any]] = _key.take("torch._C._dispatch_library", lambda *args: None)
_destroy: Final[Callable[[Any], None]] = _key.take("torch.library.Library._destroy", lambda library: None)
OPS_MODULE: Final[Any] = _key.take("torch._ops", None)
"""The module whose `key_extractor` picks the dispatch key of operators that torch dispatches in Python."""
_key.take("torch._ops.key_extractor", None)


def _free_key() -> Any:
    """Return the free key, or None if this torch lacks the key or a name that using it needs."""
    if not _key.complete:
        return None
    try:
        return _parse_key(FREE_KEY_NAME)
    except (RuntimeError, AttributeError):
        _key.lacking.append(f"dispatch key {FREE_KEY_NAME}")
        return None


FREE_KEY: Final = _free_key()
BELOW_FREE_KEY: Final[Any] = None if FREE_KEY is None else _full_after(FREE_KEY)
"""The keys that come after the free key."""


def kernel_library(space: str, file: str) -> Any:
    """Return a C++ library of kernels for ops of a namespace. The kernels are removed with the library."""
    return _library("IMPL", space, "", file, 0)


def destroy_library(library: Any) -> None:
    """Remove the kernels of a `torch.library.Library`."""
    _destroy(library)


_below: Final = Part("replay runs ops above autograd, which costs time and memory")
below_inplace_or_view: Final[Guard] = _below.take(
    "torch._C._AutoDispatchBelowADInplaceOrView", contextlib.nullcontext
)
"""A guard: ops inside are called below the keys that count versions and track views."""
below_autograd: Final[Guard] = _below.take("torch._C._AutoDispatchBelowAutograd", contextlib.nullcontext)
"""A guard: ops inside are called below autograd."""
disable_autocast: Final[Guard] = Part("autocast of the program acts on what a replay runs").take(
    "torch._C._DisableAutocast", contextlib.nullcontext
)
"""A guard: autocast is off inside."""
set_grad_enabled: Final[Callable[[bool], Any]] = Part(
    "replay switches grad mode by the public function"
).take("torch._C._set_grad_enabled", torch.set_grad_enabled)
"""Switch grad mode of this thread on or off."""
