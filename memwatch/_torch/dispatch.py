"""Dispatch keys: the key that nothing uses, kernels on it, and the guards that pass keys by.

| torch | here |
| --- | --- |
| torch._C._dispatch_key_parse("Fake") | FREE_KEY, None where the key does not work |
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

from memwatch._torch.lookup import Part

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    Guard = Callable[[], AbstractContextManager[Any]]

FREE_KEY_NAME: Final = "Fake"
"""The functionality key below autograd that nothing in torch uses; a kernel on it sees every op."""

_key: Final = Part("ops are seen through a dispatch mode, because no free dispatch key works")
_parse_key: Final[Callable[[str], Any]] = _key.take("torch._C._dispatch_key_parse", lambda name: None)
_full_after: Final[Callable[[Any], Any]] = _key.take("torch._C._dispatch_keyset_full_after", lambda key: None)
include_key: Final[Callable[[Any, bool], None]] = _key.take(
    "torch._C._dispatch_tls_set_dispatch_key_included", lambda key, on: None
)
"""Include a key in this thread, or no longer."""
is_key_included: Final[Callable[[Any], bool]] = _key.take(
    "torch._C._dispatch_tls_is_dispatch_key_included", lambda key: False
)
"""Return True if a key is included in this thread."""
exclude_key: Final[Callable[[Any, bool], None]] = _key.take(
    "torch._C._dispatch_tls_set_dispatch_key_excluded", lambda key, on: None
)
"""Exclude a key in this thread, or no longer."""
op_names: Final[Callable[[], list[str]]] = _key.take("torch._C._dispatch_get_all_op_names", list)
"""Return the qualified name of every overload that is defined, as ``aten::add.Tensor``."""
schemas: Final[Callable[[], list[Any]]] = Part("").take("torch._C._jit_get_all_schemas", list)
"""Return the schema of every overload that is defined, without an object of `torch.ops` for any."""
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
"""The set of keys that come after the free one."""


def kernel_library(space: str, file: str) -> Any:
    """Return a library of C++ that puts kernels on ops of a namespace; they go when it does."""
    return _library("IMPL", space, "", file, 0)


def destroy_library(library: Any) -> None:
    """Take the kernels of a `torch.library.Library` off."""
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
