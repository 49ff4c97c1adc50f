"""The inputs of a replay: the recorded ones, or synthetic ones of the same shapes.

The program's own tensors are only ever read. An input that the program writes is replaced by a copy of its bytes
from before the first write. So no replay, finished or failed, changes a tensor of the user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from memwatch.capture.schema import NONE
from memwatch.encoding.host_copies import HostBytes, checksum, copy_in, new_storage
from memwatch.replay.errors import ReplayError, UnsupportedOpError

if TYPE_CHECKING:
    from memwatch.encoding.host_copies import ReplayInputs
    from memwatch.replay.program import Buffer, Program

_FLOATS: Final = frozenset({"float64", "float32", "float16", "bfloat16", "complex64", "complex128"})


def starting_storages(program: Program, inputs: ReplayInputs | None) -> list[torch.UntypedStorage | None]:
    """Return the storage of every input buffer, and None for buffers that a call makes.

    Args:
        program: the program.
        inputs: the live part of the recording; None makes synthetic inputs.

    Raises:
        ReplayError: an input was changed since it was recorded.
    """
    used = {number for call in program.calls for number in (*call.reads, *call.writes)}
    return [
        _starting(buffer, inputs) if number in used and buffer.maker == NONE else None
        for number, buffer in enumerate(program.buffers)
    ]


def _starting(buffer: Buffer, inputs: ReplayInputs | None) -> torch.UntypedStorage:
    if inputs is None:
        return _copied(_synthetic(buffer), buffer.device)
    before = inputs.before.get(buffer.storage)
    if before is not None:
        return _copied(before, buffer.device)
    storage = inputs.inputs[buffer.storage]
    if storage.nbytes() != buffer.nbytes or checksum(storage) != inputs.checksums[buffer.storage]:
        raise ReplayError(
            f"an input of the block ({buffer.dtype}, {buffer.nbytes} bytes) was changed since it was recorded; "
            "replay before the program goes on, or record again"
        )
    return storage


def _copied(held: HostBytes, device: str) -> torch.UntypedStorage:
    storage = new_storage(len(held), device)
    copy_in(held, storage)
    return storage


def _synthetic(buffer: Buffer) -> HostBytes:
    """Return bytes of the recorded type: numbers between 0 and 1 for floats, zeros for other types.

    Integers may be indices into tensors of any size, and 0 is the only index that is always valid.
    """
    if buffer.dtype not in _FLOATS or not buffer.nbytes:
        return np.zeros(buffer.nbytes, dtype=np.uint8)
    dtype: torch.dtype = getattr(torch, buffer.dtype)
    generator = torch.Generator().manual_seed(buffer.storage)
    values = torch.rand(buffer.nbytes // dtype.itemsize, dtype=dtype, generator=generator)
    held = values.view(torch.uint8).numpy()
    return np.concatenate([held, np.zeros(buffer.nbytes - len(held), dtype=np.uint8)])


def check_inputs(program: Program, inputs: ReplayInputs) -> None:
    """Raise for a program whose inputs changed while no recorded op wrote them.

    Raises:
        UnsupportedOpError: the message names the first op that used such an input.
    """
    for call in program.calls:
        for number in (*call.reads, *call.writes):
            buffer = program.buffers[number]
            if buffer.maker == NONE and buffer.storage in inputs.changed:
                raise UnsupportedOpError(
                    f"an input of {call.where} was changed inside the block, but by no recorded op "
                    "(numpy, a compiled region, another thread?); change it with torch ops, or outside the block"
                )
