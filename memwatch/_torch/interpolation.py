"""Interpolation in traces: torch's compiler takes it apart into many ops, whose sums are rounded otherwise.

Of the nearest neighbour the sums are equal, but the gradient of an input in channels_last is not in channels_last, and
what is summed over it further on is rounded otherwise.

| torch | here |
| --- | --- |
| OpOverload.py_kernels, OpOverload._dispatch_cache of `upsample_bilinear2d` and the like | interpolating_in_one() |
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.lookup import Part

__all__ = ["interpolating_in_one"]

if TYPE_CHECKING:
    from collections.abc import Iterator

_KINDS: Final = (
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
)  # fmt: skip
_part: Final = Part("interpolation under the backend memwatch is close to eager PyTorch, but not equal")
_KEYS: Final = [
    key
    for name in ("Autograd", "CompositeImplicitAutograd")
    if (key := _part.take(f"torch._C.DispatchKey.{name}", None)) is not None
]
"""For these the compiler has functions in Python; without them it takes what eager PyTorch calls."""


@contextlib.contextmanager
def interpolating_in_one() -> Iterator[None]:
    """Let what is traced in the block call the ops of eager PyTorch."""
    taken: list[tuple[Any, dict[Any, Any]]] = []
    try:
        for overload in _overloads():
            kernels: dict[Any, Any] = overload.py_kernels
            found: dict[Any, Any] = {}
            taken.append((overload, found))
            for key in _KEYS:
                if key in kernels:
                    found[key] = kernels.pop(key)
            overload._dispatch_cache.clear()
        yield
    finally:
        for overload, found in taken:
            overload.py_kernels.update(found)
            overload._dispatch_cache.clear()


def _overloads() -> list[Any]:
    packets = (getattr(torch.ops.aten, kind, None) for kind in _KINDS)
    pairs = itertools.product(packets, ("default", "vec"))
    found = [getattr(packet, name, None) for packet, name in pairs]
    return [each for each in found if hasattr(each, "py_kernels") and hasattr(each, "_dispatch_cache")]
