"""Compute the cost of a call: its FLOPs by torch's own formulas, plus a price for the bytes that it moves.

torch has no formula for elementwise ops, but they cost time too. So each byte that an op reads or writes costs
`FLOPS_PER_BYTE` FLOPs. Measured times are too noisy to compare plans with them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from memwatch._torch.dispatch import base_name_of
from memwatch.encoding import ONLY_ALLOCATE, GeneratorNumber, Value, Window, leaves, replace
from memwatch.replay.program import overload_of
from memwatch.signal_handlers import suppress

if TYPE_CHECKING:
    from memwatch.replay.program import Call

FLOPS_PER_BYTE: Final = 8
"""FLOPs that a CPU core computes in the time in which it moves one byte: about 50 GFLOP/s and 6 GB/s."""


def cost(call: Call) -> float:
    """Return the price of computing a recorded call once, in FLOPs."""
    return price(*_as_meta(call))


def call_flops(call: Call) -> int:
    """Return the FLOPs of a recorded call by torch's formulas; 0 where it has none."""
    return flops(*_as_meta(call))


def _as_meta(call: Call) -> tuple[Value, Value, dict[str, Value], Value]:
    """Return (overload, arguments, keyword arguments, result) of a call, with meta tensors in place of windows."""
    positional, keyword, result = (
        replace(value, _meta_tensor) for value in (call.positional, list(call.keyword.values()), call.result)
    )
    return overload_of(call), positional, dict(zip(call.keyword, keyword, strict=True)), result


def price(overload: Value, positional: Value, keyword: dict[str, Value], result: Value) -> float:
    """Return the price of computing a call once, in FLOPs.

    Args:
        overload: the op.
        positional: its positional arguments; tensors of any device.
        keyword: its keyword arguments.
        result: its result.
    """
    name = base_name_of(overload)
    if name in ONLY_ALLOCATE or name == "resize_":
        return 0.0
    moved = sum(
        _span_bytes(item)
        for item in leaves([positional, *keyword.values(), result])
        if isinstance(item, Tensor)
    )
    return float(flops(overload, positional, keyword, result) + FLOPS_PER_BYTE * moved)


def flops(overload: Value, positional: Value, keyword: dict[str, Value], result: Value) -> int:
    """Return the FLOPs of a call by torch's formulas; 0 where it has none."""
    formula = flop_registry.get(overload.overloadpacket)
    if formula is None:
        return 0
    # some formulas expect the arguments of another overload of the op and raise on these
    with suppress(AssertionError, IndexError, TypeError, ValueError):
        out = tuple(result) if isinstance(result, list) else result
        return int(formula(*positional, **keyword, out_val=out))
    return 0


def _span_bytes(tensor: Tensor) -> int:
    """Return the bytes of memory behind a tensor. An expanded dimension, which has stride 0, counts once."""
    # a dimension of size 0 stays in the product, because such a tensor has no bytes
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not size)
    return math.prod(map(int, sizes)) * tensor.dtype.itemsize


def _meta_tensor(item: Value) -> Value:
    if isinstance(item, Window):
        return torch.empty_strided(item.size, item.stride, dtype=item.dtype, device="meta")
    return None if isinstance(item, GeneratorNumber) else item
