"""What a call costs: FLOPs by torch's own formulas, and the bytes it moves.

One byte moved is priced as `FLOPS_PER_BYTE` FLOPs, the balance of a CPU core (some 50 GFLOP/s against
6 GB/s), so that an elementwise op is not free. Measured times are too noisy to compare plans by.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, Final

import torch
from torch.utils.flop_counter import flop_registry

from memwatch.replay.encode import GeneratorNumber, Value, Window, leaves, replace
from memwatch.replay.overloads import overload_of
from memwatch.replay.program import Call

FLOPS_PER_BYTE: Final = 8
_ALLOCATES_ONLY: Final = frozenset(
    {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "resize_"}
)


def flops(call: Call) -> int:
    """Return the FLOPs of a call; 0 where torch has no formula for it."""
    formula: Any = flop_registry.get(overload_of(call).overloadpacket)
    if formula is None:
        return 0
    with contextlib.suppress(
        AssertionError, IndexError, TypeError, ValueError
    ):  # a formula for other arguments
        positional, keyword, result = (
            replace(value, _meta_tensor)
            for value in (call.positional, list(call.keyword.values()), call.result)
        )
        out = tuple(result) if isinstance(result, list) else result
        return int(formula(*positional, **dict(zip(call.keyword, keyword, strict=True)), out_val=out))
    return 0


def bytes_moved(call: Call) -> int:
    """Return the bytes of the windows that a call reads and writes; 0 for what only allocates."""
    if call.name.split(".")[1] in _ALLOCATES_ONLY:
        return 0
    windows = (item for item in leaves([call.positional, list(call.keyword.values()), call.result]))
    return sum(_span_bytes(item) for item in windows if isinstance(item, Window))


def cost(call: Call) -> float:
    """Return the price of computing a call once, in FLOPs."""
    return float(flops(call) + FLOPS_PER_BYTE * bytes_moved(call))


def _span_bytes(window: Window) -> int:
    """Return the bytes that a window touches; an expanded dimension is read once."""
    sizes = (size for size, stride in zip(window.size, window.stride, strict=True) if stride or not size)
    return math.prod(sizes) * window.dtype.itemsize


def _meta_tensor(item: Value) -> Value:
    if isinstance(item, Window):
        return torch.empty_strided(item.size, item.stride, dtype=item.dtype, device="meta")
    return None if isinstance(item, GeneratorNumber) else item
