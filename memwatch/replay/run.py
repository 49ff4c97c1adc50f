"""Replay a schedule: execute it on the recorded inputs, measure it, compare its results, and restore the random state.

No replay changes a tensor of the user, even if it fails. It only reads the program's own tensors. If the program writes
an input, the replay uses a copy of the bytes from before the first write.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from memwatch.capture.schema import NONE
from memwatch.devices import adapter_of, devices_in_use
from memwatch.encoding import (
    HostBytes,
    checksum,
    copy_in,
    copy_out,
    crc32,
    new_storage,
    read_states,
    restore_states,
)
from memwatch.errors import ReplayError, UnsupportedOpError
from memwatch.planner import Schedule
from memwatch.replay.executor import Executor, OnStep
from memwatch.replay.measure import measure_peak
from memwatch.replay.program import Buffer, Program, pinned
from memwatch.sizes import format_bytes
from memwatch.text import ShownAsText
from memwatch.words.processes import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.encoding import ReplayInputs
    from memwatch.replay.graph import Recorded


@dataclass(frozen=True)
class ReplayResult(ShownAsText):
    """A plan, executed and checked.

    Attributes:
        peak_increase_bytes: most bytes that the run allocated and held at once, by the allocator's events.
        planned_bytes: peak increase that the plan predicts.
        identical: whether all results have the same bytes as after the program, and the random generators the same
            state. The results are the storages that the program can still reach. None for synthetic inputs, because
            their results are not compared.
        max_abs_diff: largest absolute difference of any element; 0.0 if all results are equal, nan if none is compared.
        tolerance: largest difference between two runs of the program in its own order. It is measured only if a result
            differs, and is 0.0 otherwise. It is also 0.0 if kernels repeat their results bit for bit.
        duration_s: the time of the run (s).
        moved_bytes: bytes that were moved out and back.
        num_checked: how many results were compared.
        synthetic: whether the inputs were made up, because the live part of the recording was missing.
        differs_in: op and line that last wrote the first result that differs; empty if all results are equal.
    """

    peak_increase_bytes: int
    planned_bytes: int
    identical: bool | None
    max_abs_diff: float
    tolerance: float
    duration_s: float
    moved_bytes: int
    num_checked: int
    synthetic: bool
    differs_in: str = ""

    @property
    def within_tolerance(self) -> bool:
        """Whether the results differ at most as much as the results of two runs of the program itself."""
        return self.max_abs_diff <= self.tolerance

    def __str__(self) -> str:
        peak = f"replayed: peak increase {format_bytes(self.peak_increase_bytes)}"
        if self.peak_increase_bytes != self.planned_bytes:
            peak += f" (planned {format_bytes(self.planned_bytes)})"
        equal = counted(self.num_checked, "storage")
        if self.synthetic:
            checked = "synthetic inputs, nothing to compare"
        elif self.identical:
            checked = f"{equal} bitwise equal"
        elif not self.max_abs_diff and not self.differs_in:
            checked = f"{equal} bitwise equal, but a random generator ends in another state"
        else:
            checked = f"largest difference {self.max_abs_diff:g}"
            if self.differs_in:
                checked += f", first in the result of {self.differs_in}"
            if self.tolerance:
                checked += f", two runs of the program differ by {self.tolerance:g}"
        moved = f", {format_bytes(self.moved_bytes)} moved" if self.moved_bytes else ""
        return f"{peak}; {checked}; {self.duration_s:.3f} s{moved}"


def replay_schedule(
    recorded: Recorded,
    schedule: Schedule,
    inputs: ReplayInputs | None,
    planned_bytes: int,
    on_step: OnStep | None = None,
) -> ReplayResult:
    """Execute a schedule on the recorded inputs and compare the results.

    Args:
        recorded: the program and its graph.
        schedule: the steps.
        inputs: the live part of the recording; None replays with synthetic inputs of the recorded shapes.
        planned_bytes: peak increase that the plan predicts.
        on_step: called before every step with its number.

    Raises:
        ReplayError: an input changed since it was recorded, or an op failed or returned another value or shape.
    """
    run = _Run(recorded, inputs)
    found, outcome = run.once(schedule, on_step)
    result = partial(
        ReplayResult,
        peak_increase_bytes=outcome.peak_increase_bytes,
        planned_bytes=planned_bytes,
        duration_s=outcome.duration_s,
        moved_bytes=outcome.moved_bytes,
    )
    if inputs is None:
        return result(identical=None, max_abs_diff=math.nan, tolerance=0.0, num_checked=0, synthetic=True)
    program = recorded.program
    wanted = _recorded_results(program, inputs)
    wrong = _differing(wanted, found)
    gap = _largest_of_all(program, wrong, wanted, found)
    tolerance = run.own_difference() if wrong else 0.0
    return result(
        identical=not wrong and not outcome.rng_differs,
        max_abs_diff=gap,
        tolerance=tolerance,
        num_checked=len(wanted),
        synthetic=False,
        differs_in=_last_writer(program, wrong),
    )


class _Outcome:
    """Measurements of one run."""

    peak_increase_bytes = 0
    duration_s = 0.0
    moved_bytes = 0
    rng_differs = False


class _Run:
    """Runs schedules of one program, each from the recorded start."""

    def __init__(self, recorded: Recorded, inputs: ReplayInputs | None) -> None:
        self._recorded = recorded
        self._inputs = inputs

    def once(
        self, schedule: Schedule, on_step: OnStep | None = None
    ) -> tuple[dict[int, HostBytes], _Outcome]:
        """Run a schedule; return the bytes of its results, by buffer, and the measurements."""
        inputs, program = self._inputs, self._recorded.program
        own = inputs.generators if inputs is not None else []
        users_states = read_states(
            [*devices_in_use(), *(f"generator:{index}" for index in range(len(own)))], own
        )
        executor = Executor(self._recorded, schedule, starting_storages(program, inputs), inputs, on_step)
        outcome = _Outcome()
        try:
            with measure_peak(self._recorded.device) as measured:
                device = self._recorded.device
                # an accelerator may still work when a call has returned
                wait = partial(adapter_of(device).synchronize, device)
                wait()
                start_s = time.perf_counter()
                executor.run()
                wait()
                outcome.duration_s = time.perf_counter() - start_s
            outcome.peak_increase_bytes = measured.peak_increase_bytes
            outcome.moved_bytes = executor.moved_bytes
            outcome.rng_differs = _generators_differ(executor)
            return _results_of(program, executor.storages), outcome
        finally:
            executor.clear()
            restore_states(users_states, own)

    def own_difference(self) -> float:
        """Return the largest difference between two runs of the program in its own order."""
        order = Schedule.from_order(np.arange(self._recorded.graph.num_ops))
        program = self._recorded.program
        (one, _), (other, _) = self.once(order), self.once(order)
        return _largest_of_all(program, _differing(one, other), one, other)


_FLOATS: Final = frozenset({"float64", "float32", "float16", "bfloat16", "complex64", "complex128"})


def starting_storages(program: Program, inputs: ReplayInputs | None) -> list[torch.UntypedStorage | None]:
    """Return the storage of each input that a call uses. The list has None for the other buffers.

    Args:
        program: the program.
        inputs: the live part of the recording; None makes synthetic inputs.

    Raises:
        ReplayError: an input was changed since it was recorded.
    """
    used = {number for call in program.calls for number in (*call.reads, *call.writes)}
    return [
        _starting_storage(buffer, inputs) if number in used and buffer.maker == NONE else None
        for number, buffer in enumerate(program.buffers)
    ]


def _starting_storage(buffer: Buffer, inputs: ReplayInputs | None) -> torch.UntypedStorage:
    if inputs is None:
        return _storage_of(_synthetic(buffer), buffer.device)
    before = inputs.before.get(buffer.storage)
    if before is not None:
        return _storage_of(before, buffer.device)
    storage = inputs.inputs[buffer.storage]
    if storage.nbytes() != buffer.nbytes or checksum(storage) != inputs.checksums[buffer.storage]:
        raise ReplayError(
            f"an input of the block ({buffer.dtype}, {buffer.nbytes} bytes) was changed since it was recorded; "
            "replay before the program goes on, or record again"
        )
    return storage


def _storage_of(held: HostBytes, device: str) -> torch.UntypedStorage:
    storage = new_storage(len(held), device)
    copy_in(held, storage)
    return storage


def _synthetic(buffer: Buffer) -> HostBytes:
    """Return bytes of the recorded type: numbers between 0 and 1 for the common floats, zeros for other types.

    Integers may be indices into tensors of any size. 0 is a valid index into every tensor that is not empty.
    """
    if buffer.dtype not in _FLOATS or not buffer.nbytes:
        return np.zeros(buffer.nbytes, dtype=np.uint8)
    dtype: torch.dtype = getattr(torch, buffer.dtype)
    generator = torch.Generator().manual_seed(buffer.storage)
    values = torch.rand(buffer.nbytes // dtype.itemsize, dtype=dtype, generator=generator)
    held = values.view(torch.uint8).numpy()
    return np.concatenate([held, np.zeros(buffer.nbytes - len(held), dtype=np.uint8)])


def check_inputs(program: Program, inputs: ReplayInputs) -> None:
    """Raise an error if an input of the program changed without a recorded op that wrote it.

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


def _results_of(program: Program, storages: Sequence[torch.UntypedStorage | None]) -> dict[int, HostBytes]:
    """Return copies of the bytes of every result, by buffer."""
    found = {}
    for buffer in pinned(program):
        storage = storages[buffer]
        if storage is not None and program.buffers[buffer].nbytes:
            found[buffer] = _shown_bytes(program, buffer, copy_out(storage))
    return found


def _recorded_results(program: Program, inputs: ReplayInputs) -> dict[int, HostBytes]:
    """Return the recorded bytes of the program's results, by buffer."""
    results = inputs.results
    numbers = ((buffer, program.buffers[buffer].storage) for buffer in pinned(program))
    return {
        buffer: _shown_bytes(program, buffer, results[storage])
        for buffer, storage in numbers
        if storage in results
    }


def _shown_bytes(program: Program, buffer: int, held: HostBytes) -> HostBytes:
    """Return the bytes of a buffer, with zeros outside of its windows. Kernels may leave any bytes there."""
    windows = program.windows.get(buffer, set())
    if any(
        window.offset == 0 and math.prod(window.size) * window.dtype.itemsize == len(held)
        for window in windows
    ):
        return held
    mask = np.zeros(len(held), dtype=np.uint8)
    for window in windows:
        itemsize = window.dtype.itemsize
        start = mask[window.offset * itemsize :]
        strides = (*(stride * itemsize for stride in window.stride), 1)
        if math.prod(window.size) and len(start):
            np.lib.stride_tricks.as_strided(start, (*window.size, itemsize), strides)[...] = 1
    return held * mask


def _differing(wanted: dict[int, HostBytes], found: dict[int, HostBytes]) -> list[int]:
    """Return the buffers whose bytes differ."""
    return [
        buffer
        for buffer, held in wanted.items()
        if len(held) and not np.array_equal(held, found.get(buffer, held[:0]))
    ]


def _last_writer(program: Program, buffers: list[int]) -> str:
    """Return the last op that wrote the first of these buffers, for messages; an empty text if there are no buffers."""
    calls = (
        call for call in reversed(program.calls) if buffers and buffers[0] in (*call.makes, *call.writes)
    )
    return next((call.where for call in calls), "")


def _largest_difference(buffer: Buffer, wanted: HostBytes, found: HostBytes | None) -> float:
    """Return the largest absolute difference of any element. It is infinite if only one of two elements is nan."""
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


def _largest_of_all(
    program: Program, buffers: list[int], wanted: dict[int, HostBytes], found: dict[int, HostBytes]
) -> float:
    """Return the largest absolute difference over some buffers; 0.0 for none."""
    return max(
        (
            _largest_difference(program.buffers[number], wanted[number], found.get(number))
            for number in buffers
        ),
        default=0.0,
    )


def _generators_differ(executor: Executor) -> bool:
    """Return True if the last op that drew random numbers left a generator in another state than in the recording."""
    inputs = executor.inputs
    if inputs is None or executor.last_drawn < 0:
        return False
    recorded = inputs.rng_after[executor.last_drawn]
    generators = inputs.rng_before[executor.last_drawn].keys()
    now = read_states(generators, inputs.generators)
    return any(crc32(state) != recorded[name] for name, state in now.items())
