"""How an op's arguments, results, inputs and generators are written down when recorded, and read back for a replay.

`record` writes them and `replay` reads them; neither imports the other. Arguments and results are written as text, in
which a tensor becomes a window on its storage: a dtype, a size, a stride and an offset. The storage is not part of the
text, so that equal calls share one text. A value that cannot be written is recorded as unsupported, and a plan refuses
it. The bytes of storages and the states of random generators are copied to host memory; a replay starts from them.
"""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from memwatch._torch.fake import FakeTensor
from memwatch.devices import adapter_of
from memwatch.errors import MemwatchError
from memwatch.text import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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
HostBytes: TypeAlias = NDArray[np.uint8]
RngStates = dict[str, HostBytes]
"""The state of each generator, by device (such as `cuda:0`), or by `generator:N` for the program's own generators."""
OWN = "generator:"


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


def as_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a tensor of bytes over a storage, without a copy."""
    with torch.no_grad():
        empty: Any = torch.empty(0, dtype=torch.uint8, device=storage.device)
        tensor: torch.Tensor = empty.set_(storage, 0, (storage.nbytes(),), (1,))
        return tensor


def copy_out(storage: torch.UntypedStorage) -> HostBytes:
    """Copy the bytes of a storage to host memory that numpy owns."""
    held = np.empty(storage.nbytes(), dtype=np.uint8)
    if len(held):
        torch.from_numpy(held).copy_(as_bytes(storage))
    return held


def copy_in(held: HostBytes, storage: torch.UntypedStorage) -> None:
    """Copy bytes from host memory into a storage of the same size."""
    if len(held):
        as_bytes(storage).copy_(torch.from_numpy(held))


def new_storage(nbytes: int, device: torch.device | str) -> torch.UntypedStorage:
    """Allocate a storage on a device, with undefined bytes."""
    return torch.empty(nbytes, dtype=torch.uint8, device=device).untyped_storage()


def checksum(storage: torch.UntypedStorage) -> int:
    """Return a checksum (CRC-32) of the bytes of a storage."""
    if not storage.nbytes():
        return 0
    held = as_bytes(storage)
    return crc32(held.cpu().numpy())


def crc32(held: HostBytes) -> int:
    """Return the CRC-32 of bytes in host memory."""
    return zlib.crc32(held.data)


@dataclass
class ReplayInputs:
    """The live part of a recording made with `profile(replay=True)`.

    Attributes:
        inputs: storages that ops read or wrote but no recorded op made, by number.
        checksums: checksum of each input when it was first seen.
        before: bytes of the written inputs, from before the first write.
        filled: bytes that the host wrote into memory that an op only allocated (`empty`), by storage.
        results: bytes at the end of the block of every living storage that an op made or wrote.
        changed: inputs that changed without a recorded op.
        rng_before: generator states before each op that may draw random numbers, by op.
        rng_after: checksums of the generator states after each such op, by op.
        generators: the program's own generators, by number.
    """

    inputs: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    checksums: dict[int, int] = field(default_factory=dict)
    before: dict[int, HostBytes] = field(default_factory=dict)
    filled: dict[int, HostBytes] = field(default_factory=dict)
    results: dict[int, HostBytes] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)
    rng_before: dict[int, RngStates] = field(default_factory=dict)
    rng_after: dict[int, dict[str, int]] = field(default_factory=dict)
    generators: list[torch.Generator] = field(default_factory=list)


def read_states(names: Iterable[str], own: Sequence[torch.Generator]) -> RngStates:
    """Copy the states of generators to host memory that torch does not count.

    Args:
        names: devices for their default generators, and `generator:N` for the program's own generators.
        own: the program's own generators.
    """
    return {name: _state(name, own).numpy().copy() for name in names}


def restore_states(states: RngStates, own: Sequence[torch.Generator]) -> None:
    """Set generators to states read before."""
    for name, state in states.items():
        if name.startswith(OWN):
            own[_number(name)].set_state(torch.from_numpy(state))
        else:
            adapter_of(name).set_random_state(name, torch.from_numpy(state))


def _state(name: str, own: Sequence[torch.Generator]) -> torch.Tensor:
    return own[_number(name)].get_state() if name.startswith(OWN) else adapter_of(name).random_state(name)


def _number(name: str) -> int:
    return int(name.removeprefix(OWN))
