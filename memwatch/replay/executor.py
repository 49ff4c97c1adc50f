"""Execute a schedule on real storages, and free each buffer at the step that the plan names.

The window of a tensor is its data type, shape, stride and offset. Every argument is rebuilt from its window just before
a call and dropped right after it, so only the executor's list of storages keeps a buffer alive. The executor drops
references from this list only. It never touches saved tensors or optimizer state of the program.

Offloaded buffers of an accelerator move to pinned host memory. Offloaded buffers of the CPU move to a mapped file.
"""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from memwatch._torch import dispatch
from memwatch._torch.dispatch import base_name_of, call_of
from memwatch._torch.modes import disable_torch_function, without_modes
from memwatch._torch.tensors import address_of, set_conj, set_neg
from memwatch.devices import adapter_of
from memwatch.encoding import (
    ONLY_ALLOCATE,
    GeneratorNumber,
    HostBytes,
    Value,
    Window,
    as_bytes,
    copy_in,
    leaves,
    new_storage,
    replace,
    restore_states,
)
from memwatch.errors import ReplayError
from memwatch.planner import Graph, Schedule, StepKind
from memwatch.planner.peak import allocations
from memwatch.replay.program import overload_of
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from types import TracebackType

    from memwatch.encoding import ReplayInputs
    from memwatch.replay.graph import Recorded
    from memwatch.replay.program import Call


class Spill:
    """Hold the bytes of offloaded buffers, and drop them when the context ends."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="memwatch-spill-")
        self._files: dict[int, HostBytes] = {}
        self._pinned: dict[int, torch.Tensor] = {}
        self.moved_bytes = 0

    def __enter__(self) -> Spill:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.clear()
        self._pinned.clear()
        self._folder.cleanup()

    def out(self, buffer: int, storage: torch.UntypedStorage) -> None:
        """Copy the bytes of a buffer out. They replace an earlier copy of the same buffer."""
        self.moved_bytes += storage.nbytes()
        if storage.device.type != "cpu":
            held = adapter_of(storage.device.type).host_copy(storage.nbytes())
            self._pinned[buffer] = held.copy_(as_bytes(storage))
            return
        if storage.nbytes():
            path = pathlib.Path(self._folder.name) / str(buffer)
            mapped = np.memmap(path, dtype=np.uint8, mode="w+", shape=(storage.nbytes(),))
            torch.from_numpy(mapped).copy_(as_bytes(storage))
        self._files[buffer] = mapped if storage.nbytes() else np.empty(0, dtype=np.uint8)

    def back(self, buffer: int, device: str) -> torch.UntypedStorage:
        """Return a new storage with the bytes of a buffer."""
        if buffer in self._pinned:
            held = self._pinned[buffer]
            storage = new_storage(held.numel(), device)
            as_bytes(storage).copy_(held)
        else:
            storage = new_storage(len(self._files[buffer]), device)
            copy_in(self._files[buffer], storage)
        self.moved_bytes += storage.nbytes()
        return storage


OnStep = Callable[[int], None]


@dataclass(frozen=True)
class FreeSteps:
    """The steps at which storages of buffers are kept and dropped.

    Attributes:
        bound: per step, the buffers whose new storage is kept. Other new storages are dropped at once.
        freed: per step, the buffers whose storage is dropped after it.
    """

    bound: list[set[int]]
    freed: list[list[int]]


def free_steps_of(graph: Graph, schedule: Schedule) -> FreeSteps:
    """Return the buffers to keep and to free at each step, from the allocations that the planner counted."""
    held = allocations(graph, schedule)
    order = np.lexsort((held.last_step, held.first_step, held.buffer))
    bound: list[set[int]] = [set() for _ in range(len(schedule))]
    freed: list[list[int]] = [[] for _ in range(len(schedule))]
    previous, until = -1, -1
    columns = (held.buffer[order].tolist(), held.first_step[order].tolist(), held.last_step[order].tolist())
    for buffer, first, last in zip(*columns, strict=True):
        if buffer == previous and last <= until:
            continue  # the old storage is still in use, so the new one is dropped
        previous, until = buffer, last
        if first >= 0:
            bound[first].add(buffer)
        if last < len(schedule):
            freed[last].append(buffer)
    return FreeSteps(bound, freed)


@dataclass
class Executor:
    """One execution of a schedule.

    Attributes:
        recorded: the program and its graph.
        schedule: the steps to run.
        storages: buffer -> its storage, or None. The executor has no other references to storages between two steps.
        inputs: the live part of the recording; None for synthetic inputs, whose results are not compared.
        on_step: called before every step with its number.
        last_drawn: number of the last op that drew random numbers, -1 for none.
        moved_bytes: bytes that were moved out and back, once the run is over.
    """

    recorded: Recorded
    schedule: Schedule
    storages: list[torch.UntypedStorage | None]
    inputs: ReplayInputs | None = None
    on_step: OnStep | None = None
    last_drawn: int = -1
    moved_bytes: int = 0
    _computed: set[int] = field(default_factory=set)
    _new: dict[int, torch.UntypedStorage] = field(default_factory=dict)

    def run(self) -> None:
        """Run every step. Afterwards `storages` holds the pinned buffers, the results of the program.

        Raises:
            ReplayError: an op raised, or returned another value or shape than it was recorded with.
        """
        buffer_of = self.recorded.buffer_of.tolist()
        free_steps = free_steps_of(self.recorded.graph, self.schedule)
        calls = self.recorded.program.calls
        overloads = [call_of(overload_of(call)) for call in calls]
        steps = list(zip(self.schedule.kind.tolist(), self.schedule.index.tolist(), strict=True))
        with Spill() as spill, below_autograd():
            for step, (kind, index) in enumerate(steps):
                if self.on_step is not None:
                    self.on_step(step)
                bound = {buffer_of[buffer] for buffer in free_steps.bound[step]}
                if kind == StepKind.COMPUTE:
                    self._compute(calls[index], overloads[index], bound)
                else:
                    self._move(StepKind(kind), buffer_of[index], bound, spill)
                for buffer in free_steps.freed[step]:
                    self.storages[buffer_of[buffer]] = None
            self.moved_bytes = spill.moved_bytes

    def clear(self) -> None:
        """Drop every storage."""
        self._new.clear()
        self.storages.clear()

    def _move(self, kind: StepKind, buffer: int, bound: set[int], spill: Spill) -> None:
        storage = self.storages[buffer]
        if kind is StepKind.OFFLOAD:
            assert storage is not None
            spill.out(buffer, storage)
        elif buffer in bound:
            self.storages[buffer] = (
                None  # free the old storage first, because the plan counts the buffer once
            )
            self.storages[buffer] = spill.back(buffer, self.recorded.program.buffers[buffer].device)

    def _compute(self, call: Call, overload: Callable[..., Value], bound: set[int]) -> None:
        if self.inputs is not None and call.op in self.inputs.rng_before:
            restore_states(self.inputs.rng_before[call.op], self.inputs.generators)
            self.last_drawn = call.op
        # a call that resizes a buffer gets a copy of it, so that the op can be computed again
        copies = {buffer: _copy(self._held(call, buffer)) for buffer in call.resized}
        result = self._call(call, overload, copies)
        copies.clear()
        self._check(call, result)
        del result
        if base_name_of(overload_of(call)) in ONLY_ALLOCATE:
            self._fill()
        for buffer, storage in self._new.items():
            if buffer in bound:
                self.storages[buffer] = storage
        self._new.clear()

    def _fill(self) -> None:
        """Fill memory that the op only allocated, as `aten.empty` does.

        The host may write such memory without an op, as `torch.tensor([1, 2])` does. These bytes were recorded. A
        replay with synthetic inputs fills in zeros.
        """
        for buffer, storage in self._new.items():
            number = self.recorded.program.buffers[buffer].storage
            if self.inputs is None:
                as_bytes(storage).zero_()
            elif number in self.inputs.filled:
                copy_in(self.inputs.filled[number], storage)

    def _call(
        self, call: Call, overload: Callable[..., Value], copies: dict[int, torch.UntypedStorage]
    ) -> Value:
        written_before = call.writes_once if call.op in self._computed else ()
        self._computed.add(call.op)

        def build(item: Value) -> Value:
            if isinstance(item, Window):
                buffer = call.buffers[item.slot]
                if buffer in written_before:
                    return None
                storage = copies.get(buffer)
                return rebuild(item, self._held(call, buffer) if storage is None else storage)
            if isinstance(item, GeneratorNumber):
                return torch.Generator() if self.inputs is None else self.inputs.generators[item.number]
            return item

        positional = replace(call.positional, build)
        keyword = {name: replace(value, build) for name, value in call.keyword.items()}
        # no autograd graph is built, but some kernels read the grad mode
        dispatch.set_grad_enabled(call.grad)
        try:
            return overload(*positional, **keyword)
        except Exception as error:
            pass_on(error)
            raise ReplayError(f"{call.where} failed when it was replayed: {error}") from error

    def _held(self, call: Call, buffer: int) -> torch.UntypedStorage:
        storage = self.storages[buffer]
        if storage is None:
            raise ReplayError(
                f"{call.where} needs a buffer that the plan has already freed: this plan is wrong; please report it"
            )
        return storage

    def _check(self, call: Call, result: Value) -> None:
        """Compare results with the recorded ones: tensors by window, numbers by value. Add new storages to `_new`."""
        expected, given = list(leaves(call.result)), list(leaves(result))
        if len(expected) != len(given):
            raise ReplayError(
                f"{call.where} returned {len(given)} results, but {len(expected)} were recorded"
            )
        for wanted, item in zip(expected, given, strict=True):
            if isinstance(wanted, Window) and isinstance(item, torch.Tensor):
                self._check_tensor(call, wanted, item)
            elif self.inputs is not None and not _same(wanted, item):
                raise ReplayError(
                    f"{call.where} returned {item!r}, but {wanted!r} was recorded: the program depends on a value "
                    "that differs from run to run; keep this op out of the block"
                )

    def _check_tensor(self, call: Call, wanted: Window, tensor: Value) -> None:
        buffer = call.buffers[wanted.slot]
        found = (tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset())
        storage = tensor.untyped_storage()
        nbytes = self.recorded.program.buffers[buffer].nbytes
        if found != (wanted.dtype, wanted.size, wanted.stride, wanted.offset) or storage.nbytes() != nbytes:
            raise ReplayError(
                f"{call.where} returned a {found[0]} tensor of shape {list(found[1])}, stride {list(found[2])}; "
                f"recorded were {wanted.dtype}, {list(wanted.size)}, {list(wanted.stride)}: its shape depends on "
                "values, which a replay cannot change"
            )
        known = self._new.get(buffer) if buffer in call.makes else self._held(call, buffer)
        if known is None:
            self._new[buffer] = storage
        elif address_of(known) != address_of(storage):
            raise ReplayError(f"{call.where} returned other memory than when it was recorded")


def rebuild(window: Window, storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a tensor with this window on a storage."""
    empty: Value = torch.empty(0, dtype=window.dtype, device=storage.device)
    tensor: torch.Tensor = empty.set_(storage, window.offset, window.size, window.stride)
    if "c" in window.flags:  # conjugated lazily: torch conjugates when the tensor is read
        set_conj(tensor, True)
    if "n" in window.flags:  # negated lazily
        set_neg(tensor, True)
    return tensor


@contextlib.contextmanager
def below_autograd() -> Iterator[None]:
    """Run the ops of the block as the recorder saw them: below autograd, autocast, modes and overrides."""
    with (
        without_modes(),
        torch.no_grad(),
        disable_torch_function(),
        dispatch.disable_autocast(),
        dispatch.below_inplace_or_view(),
        dispatch.below_autograd(),
    ):
        yield


def _copy(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    copy: torch.UntypedStorage = storage.clone()
    return copy


def _same(wanted: Value, found: Value) -> bool:
    # by text: nan then equals nan, and 0.0 differs from -0.0
    return wanted.__class__ is found.__class__ and repr(wanted) == repr(found)
