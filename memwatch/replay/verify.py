"""Compare the results of a replay with those of the program: outputs, gradients, state, random generators."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from memwatch.encoding.host_copies import HostBytes, copy_out, crc32, read_states
from memwatch.replay.program import Buffer, Program, pinned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.encoding.host_copies import ReplayInputs
    from memwatch.replay.executor import Executor


def results_of(program: Program, storages: Sequence[torch.UntypedStorage | None]) -> dict[int, HostBytes]:
    """Return copies of the bytes of every result, by buffer."""
    found = {}
    for buffer in pinned(program):
        storage = storages[buffer]
        if storage is not None and program.buffers[buffer].nbytes:
            found[buffer] = _shown(program, buffer, copy_out(storage))
    return found


def recorded_results(program: Program, inputs: ReplayInputs) -> dict[int, HostBytes]:
    """Return the bytes of the results of the program itself, by buffer."""
    results = inputs.results
    numbers = ((buffer, program.buffers[buffer].storage) for buffer in pinned(program))
    return {
        buffer: _shown(program, buffer, results[storage]) for buffer, storage in numbers if storage in results
    }


def _shown(program: Program, buffer: int, held: HostBytes) -> HostBytes:
    """Return the bytes of a buffer, with zeros where no tensor showed them: kernels leave those unset."""
    windows = program.windows.get(buffer, set())
    if any(
        window.offset == 0 and math.prod(window.size) * window.dtype.itemsize == len(held)
        for window in windows
    ):
        return held
    shown = np.zeros(len(held), dtype=np.uint8)
    for window in windows:
        itemsize = window.dtype.itemsize
        start = shown[window.offset * itemsize :]
        strides = (*(stride * itemsize for stride in window.stride), 1)
        if math.prod(window.size) and len(start):
            np.lib.stride_tricks.as_strided(start, (*window.size, itemsize), strides)[...] = 1
    return held * shown


def differing(wanted: dict[int, HostBytes], found: dict[int, HostBytes]) -> list[int]:
    """Return the buffers whose bytes differ."""
    return [
        buffer
        for buffer, held in wanted.items()
        if len(held) and not np.array_equal(held, found.get(buffer, held[:0]))
    ]


def last_writer(program: Program, buffers: list[int]) -> str:
    """Return the last op that wrote the first of these buffers, for messages; empty text if none did."""
    calls = (
        call for call in reversed(program.calls) if buffers and buffers[0] in (*call.makes, *call.writes)
    )
    return next((call.where for call in calls), "")


def largest_difference(buffer: Buffer, wanted: HostBytes, found: HostBytes | None) -> float:
    """Return the largest absolute difference of any element; infinite where only one of the two is nan."""
    if found is None or len(found) != len(wanted):
        return float("inf")
    dtype: torch.dtype = getattr(torch, buffer.dtype, torch.uint8)
    whole = len(wanted) // dtype.itemsize * dtype.itemsize
    kind = torch.complex128 if dtype.is_complex else torch.float64
    one, other = (torch.from_numpy(held[:whole]).view(dtype).to(kind) for held in (wanted, found))
    gap = (one - other).abs()
    gap[torch.isnan(one) & torch.isnan(other)] = 0.0
    gap[one == other] = 0.0  # equal infinities, whose difference is nan
    return float(torch.nan_to_num(gap, nan=float("inf"), posinf=float("inf")).max()) if gap.numel() else 0.0


def largest_of(
    program: Program, buffers: list[int], wanted: dict[int, HostBytes], found: dict[int, HostBytes]
) -> float:
    """Return the largest absolute difference over some buffers; 0.0 for none."""
    return max(
        (
            largest_difference(program.buffers[number], wanted[number], found.get(number))
            for number in buffers
        ),
        default=0.0,
    )


def rng_differs(executor: Executor) -> bool:
    """Return True when the generators are in another state than after the program's last draw."""
    inputs = executor.inputs
    if inputs is None or executor.last_drawn < 0:
        return False
    recorded = inputs.rng_after[executor.last_drawn]
    drawn_from = inputs.rng_before[executor.last_drawn].keys()
    now = read_states(drawn_from, inputs.generators)
    return any(crc32(state) != recorded[name] for name, state in now.items())
