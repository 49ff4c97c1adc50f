"""The parts of the Python recorder, put together as `memwatch.record.backend` asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch._torch.profiler import EVENTS_WORK
from memwatch.record.python.kernels import key_works
from memwatch.record.python.kineto import KinetoEvents
from memwatch.record.python.ledger import PythonLedger
from memwatch.record.python.ops import PythonOpRecorder
from memwatch.record.python.packs import PythonPacker
from memwatch.record.python.stack_walk import StackWalker
from memwatch.record.tables.storages import Storages

if TYPE_CHECKING:
    from memwatch.record.backend import AllocatorEvents, Backend, Block, CallContext, CaptureStack, Listener
    from memwatch.record.tables.stacks import Stacks


class PythonBackend:
    """The recorder written in Python."""

    name: Final = "python"

    def key_works(self) -> bool:
        """Return True if ops can be seen by Python kernels on the free dispatch key; probe once."""
        return key_works()

    def allocator_events(self, block: Block) -> AllocatorEvents | None:
        """Return what receives the allocator's own events; None where this torch hands out none."""
        return KinetoEvents(block) if EVENTS_WORK else None

    def recorder(self, block: Block, stacks: Stacks) -> PythonRecorder:
        """Return a recorder of one block."""
        return PythonRecorder(block, stacks)


class PythonRecorder:
    """Makes the parts that record one block."""

    def __init__(self, block: Block, stacks: Stacks) -> None:
        self._block = block
        self._ledger = PythonLedger()
        self.storages = Storages(block.strings, block.op_counter, self._ledger, estimate=block.is_estimate)
        self.capture_stack: CaptureStack = StackWalker(stacks).capture

    def ops(self, context: CallContext, listener: Listener) -> PythonOpRecorder:
        """Return what records the ops."""
        return PythonOpRecorder(self._block, self.storages, self.capture_stack, context, listener)

    def packer(self, context: CallContext) -> PythonPacker:
        """Return what packs the tensors that autograd saves."""
        return PythonPacker(self.storages, self._ledger, context, self._block.op_counter)


BACKEND: Final[Backend] = PythonBackend()
