"""Copies in host memory that a replay starts from: the bytes of storages, and the states of random generators."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from memwatch.devices import adapter_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HostBytes: TypeAlias = NDArray[np.uint8]


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


RngStates = dict[str, HostBytes]
"""The state of each generator, by device (such as `cuda:0`), or by `generator:N` for the program's own generators."""


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


OWN = "generator:"


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
