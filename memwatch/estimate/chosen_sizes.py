"""Results whose size a kernel chooses.

A recurrent layer of oneDNN keeps 15 times its output for its backward, for example.

torch's fake kernels return them empty. So an op with such a result runs here once on zeros for each of its sizes. If
its tensors are large, it runs twice at smaller sizes; the two show how the result grows with a length that a single
argument has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.fake_job import real_tensors
from memwatch.estimate.calls import call_of
from memwatch.replay.op_workspace import tensors_in
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memwatch.estimate.calls import Call, Shape

_SMALL_BYTES: Final = 16 << 20
"""Most bytes of the tensors of a call that runs at its own sizes."""
_LEAST_LENGTH: Final = 2
_TORCHS: Final = frozenset({"aten", "mkldnn", "quantized"})
_SCALED: Final = "the size of the buffer that {} keeps for its backward follows from runs at smaller sizes"
_NOT_KNOWN: Final = (
    "{} keeps a buffer for its backward, and its kernel chooses the size; the kernel could not run here, so the buffer "
    "counts as 0 bytes"
)


class ChosenSizes:
    """Give results that a fake kernel returns empty the sizes of the real kernel's.

    Args:
        remark: called with a sentence for each op whose sizes are unknown, or follow from smaller ones.
    """

    def __init__(self, remark: Callable[[str], None]) -> None:
        self._remark = remark
        self._known: dict[tuple[Call, bool], tuple[int, ...] | None] = {}

    def complete(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Any:
        """Return the results of an op, with wrongly empty ones replaced by results of their real sizes."""
        if type(result) is not tuple or not _shows_empty(op, args, result):
            return result
        key = (
            call_of(op, args, kwargs),
            torch.is_grad_enabled(),
        )  # without a backward, a layer keeps nothing
        try:
            if key not in self._known:
                self._known[key] = _real_sizes(key[0])
        except TypeError:  # an argument that cannot be compared
            return result
        sizes = self._known[key]
        if sizes is None or len(sizes) != len(result):
            self._remark(_NOT_KNOWN.format(op.name()))
            return result
        if key[0].nbytes > _SMALL_BYTES:
            self._remark(_SCALED.format(op.name()))
        return tuple(
            each.new_empty(size) if _is_open(each) and size else each
            for each, size in zip(result, sizes, strict=True)
        )


def _is_open(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dtype is torch.uint8
        and value.dim() == 1
        and not value.numel()
        and value.device.type == "cpu"
    )


def _shows_empty(op: Any, args: tuple[Any, ...], result: tuple[Any, ...]) -> bool:
    """Return True for an op of torch's own that computes, and shows bytes of no size beside other results."""
    if op.namespace not in _TORCHS or op.is_view or all(map(_is_open, result)):
        return False
    return any(map(_is_open, result)) and all(tensor.numel() for tensor in tensors_in(args))


def _real_sizes(call: Call) -> tuple[int, ...] | None:
    """Return the number of elements of each result of a call; None where it cannot be run."""
    length = _own_length(call) if call.nbytes > _SMALL_BYTES else 0
    if not length:
        return _sizes(call) if call.nbytes <= _SMALL_BYTES else None
    shorter = max(length * _SMALL_BYTES // call.nbytes, 2 * _LEAST_LENGTH)
    high, low = (_sizes(call.resized({length: at})) for at in (shorter, shorter // 2))
    if high is None or low is None:
        return None
    per_step = (shorter - shorter // 2,) * len(high)
    return tuple(
        more + (more - less) * (length - shorter) // step
        for more, less, step in zip(high, low, per_step, strict=True)
    )


def _own_length(call: Call) -> int:
    """Return the longest length that one argument alone has, once, and no number of the call is; 0 if there is none."""
    found = [length for shape in call.shapes() for length in shape.size]
    numbers = {value for value in call.positional if type(value) is int}
    alone = [each for each in found if found.count(each) == 1 and each not in numbers]
    return max((each for each in alone if each > 2 * _LEAST_LENGTH), default=0)


def _sizes(call: Call) -> tuple[int, ...] | None:
    try:
        with real_tensors():
            positional, keyword = call.filled(_zeros)
            return tuple(
                each.numel() if isinstance(each, torch.Tensor) else 0
                for each in call.op(*positional, **keyword)
            )
    except (RuntimeError, TypeError, ValueError) as error:
        pass_on(error)
        return None


def _zeros(shape: Shape) -> torch.Tensor:
    return torch.empty_strided(shape.size, shape.stride, dtype=shape.dtype, device=shape.device).zero_()
