"""The parts of the native recorder, put together as `memwatch.record.backend` asks for them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from memwatch._torch.profiler import TICKS_ARE_TORCHS
from memwatch.record.native import library
from memwatch.record.native.allocator import NativeAllocatorEvents
from memwatch.record.native.kernels import NativeKernels
from memwatch.record.native.ops import NativeOpRecorder
from memwatch.record.native.packs import NativePacker
from memwatch.record.tables.storages import Storages
from memwatch.record.tables.watched import WatchedStorage, WatchedTensor

if TYPE_CHECKING:
    from memwatch.record.backend import AllocatorEvents, Backend, Block, CallContext, CaptureStack, Listener
    from memwatch.record.native.extension import Extension
    from memwatch.record.tables.stacks import Stacks


class NativeBackend:
    """The recorder written in C++."""

    name: Final = "native"

    def __init__(self, extension: Extension) -> None:
        extension.stamp_by_torch(TICKS_ARE_TORCHS)  # Python stamps rows too, and windows
        self._extension = extension
        self._kernels = NativeKernels(extension)

    def key_works(self) -> bool:
        """Return True if ops can be seen by the compiled kernel on the free dispatch key; probe once."""
        return self._kernels.work()

    def allocator_events(self, block: Block) -> AllocatorEvents | None:
        """Return what receives the allocator's own events."""
        return NativeAllocatorEvents(self._extension, block)

    def recorder(self, block: Block, stacks: Stacks) -> NativeRecorder:
        """Return a recorder of one block."""
        return NativeRecorder(self._extension, self._kernels, block, stacks)


class NativeRecorder:
    """Makes the parts that record one block."""

    def __init__(self, extension: Extension, kernels: NativeKernels, block: Block, stacks: Stacks) -> None:
        self._extension = extension
        self._kernels = kernels
        self._block = block
        self._ledger = extension.Storages(WatchedStorage, WatchedTensor)
        self.storages = Storages(
            block.strings,
            block.op_counter,
            self._ledger,
            rows=extension.Rows,
            dead=extension.Deaths,
            estimate=block.is_estimate,
        )
        self._stacks = extension.Stacks(stacks)
        self.capture_stack: CaptureStack = self._stacks.capture

    def ops(self, context: CallContext, listener: Listener) -> NativeOpRecorder:
        """Return what records the ops."""
        return NativeOpRecorder(
            self._extension, self._kernels, self._block,
            storages=self.storages, stacks=self._stacks, context=context, listener=listener,
        )  # fmt: skip

    def packer(self, context: CallContext) -> NativePacker:
        """Return what packs the tensors that autograd saves."""
        return NativePacker(self._extension, self.storages, context, self._block.op_counter)


@functools.cache
def _backend_of(extension: Extension) -> NativeBackend:
    return NativeBackend(extension)


def backend() -> Backend | None:
    """Return the native backend, one for the process; None where it is not built or is switched off."""
    extension = library.load()
    return None if extension is None else _backend_of(extension)
