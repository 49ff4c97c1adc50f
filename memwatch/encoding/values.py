"""Write arguments and results of an op as text, and read them back. A tensor becomes a window on its storage.

A window has a dtype, a size, a stride and an offset. Its storage is not part of the text, so that equal calls share one
text. A value that cannot be written is recorded as unsupported, and a plan refuses it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch import Tensor

from memwatch._torch.fake import FakeTensor
from memwatch.errors import MemwatchError
from memwatch.text import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ONLY_ALLOCATE: Final = frozenset({"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"})


Value: TypeAlias = Any
"""An argument or a result of an op: a tensor or window, a number, text, a dtype, or lists of them."""

_PLAIN: Final = (bool, int, float, str, type(None))
_NAMED: Final = {
    torch.dtype: "dtype",
    torch.layout: "layout",
    torch.memory_format: "memory_format",
    torch.device: "device",
}


_SHOWN: Final = 60
"""Characters of a damaged text that its error shows. A guess."""
FAKE = "fake tensor"
META = "meta tensor"


@dataclass(frozen=True, slots=True)
class Window:
    """A tensor, as a window on the storage of one operand.

    Attributes:
        slot: index of the tensor among the arguments and results of the call.
        dtype: element type.
        size: elements along each dimension.
        stride: elements from one to the next along each dimension.
        offset: elements before the first.
        flags: "c" conjugated, "n" negated.
    """

    slot: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    flags: str = ""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A value that cannot be written down."""

    what: str


def encode(
    value: Value, slot_of: Callable[[Tensor], int], number_of: Callable[[torch.Generator], int]
) -> Value:
    """Turn a value into plain JSON data.

    Args:
        value: an argument, a result, or a list or tuple of them.
        slot_of: returns the slot of a tensor, or -1 if it has no plain storage.
        number_of: returns the number of a generator, or -1 for a default generator.
    """
    if isinstance(value, Tensor):
        return _encode_tensor(value, slot_of(value))
    kind = value.__class__
    if kind in _PLAIN:
        return value
    if kind is list or kind is tuple:
        return [encode(item, slot_of, number_of) for item in value]
    if isinstance(value, torch.Generator):
        return {"generator": number_of(value)}
    return _encode_other(value, kind)


def _encode_other(value: Value, kind: type) -> dict[str, Value]:
    if kind in _NAMED:
        return {_NAMED[kind]: str(value).removeprefix("torch.")}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    return {"unsupported": kind.__qualname__}


def _encode_tensor(tensor: Tensor, slot: int) -> dict[str, Any]:
    what = unsupported_tensor(tensor)
    if what or slot < 0:
        return {"unsupported": what or type(tensor).__name__}
    flags = ("c" if tensor.is_conj() else "") + ("n" if tensor.is_neg() else "")
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"t": [dtype, list(tensor.shape), list(tensor.stride()), tensor.storage_offset(), flags]}


def unsupported_tensor(tensor: Tensor) -> str:
    """Return the kind of an unsupported tensor. Empty for a tensor that is simply a window on a storage."""
    kinds = (
        (isinstance(tensor, FakeTensor), FAKE),
        (tensor.layout is not torch.strided, f"{str(tensor.layout).removeprefix('torch.')} tensor"),
        (tensor.is_nested, "nested tensor"),
        (tensor.is_quantized, "quantized tensor"),
        (tensor.device.type == "meta", META),
        (
            type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__,
            f"{type(tensor).__name__} (a tensor subclass)",
        ),
    )
    return next((what for holds, what in kinds if holds), "")


def decode(text: str, first_slot: int = 0) -> Value:
    """Read the output of `encode` and `json.dumps`; tensors become windows, numbered from `first_slot`.

    Raises:
        MemwatchError: the text is anything else, as in a damaged file.
    """
    slots = iter(range(first_slot, 1 << 62))
    try:
        return _decode(read_json(text), slots)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise MemwatchError(
            f"the capture is damaged: {text[:_SHOWN]!r} is no argument of an op; record it again"
        ) from error


def _decode(data: Value, slots: Iterator[int]) -> Value:
    if isinstance(data, list):
        return [_decode(item, slots) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, value),) = data.items()
    if kind == "t":
        dtype, size, stride, offset, flags = value
        return Window(next(slots), _named(torch.dtype, dtype), tuple(size), tuple(stride), offset, flags)
    return _DECODERS[kind](value)


def _named(kind: type, text: str) -> Value:
    """Return a constant of torch by its name; a file may name anything that torch has."""
    value = getattr(torch, text)
    if not isinstance(value, kind):
        raise TypeError(f"torch.{text} is no {kind.__name__}")
    return value


@dataclass(frozen=True, slots=True)
class GeneratorNumber:
    """One of the program's own generators."""

    number: int


_DECODERS: Final[dict[str, Callable[[Value], Value]]] = {
    **{name: functools.partial(_named, kind) for kind, name in _NAMED.items() if kind is not torch.device},
    "device": torch.device,
    "complex": lambda parts: complex(*parts),
    "generator": GeneratorNumber,
    "unsupported": Unsupported,
}


def leaves(value: Value) -> Iterator[Value]:
    """Yield the items of nested lists."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def replace(value: Value, change: Callable[[Value], Value]) -> Value:
    """Return nested lists with every item changed."""
    if isinstance(value, list):
        return [replace(item, change) for item in value]
    return change(value)
