"""The native recorder: it connects the C++ parts for ops, saved tensors and allocator events.

Python has two jobs left: tensors that consist of other tensors, and the text of errors.

The allocator's events come from c10's reports as they happen, in each thread that has a log. So a window can end at any
flush, in backward too. An event takes 48 bytes, while kineto keeps kilobytes for each op.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch._torch.profiler import TICKS_ARE_TORCHS
from memwatch.capture.schema import NONE
from memwatch.heap.autograd import look_through
from memwatch.heap.tensors import Capsule
from memwatch.record.allocator import set_log_level
from memwatch.record.backend import Window
from memwatch.record.clock import ticks
from memwatch.record.interception import KeyInterceptor, ModeInterceptor, passes, put_kernels
from memwatch.record.native import library
from memwatch.record.native.binding import OpCallbacks, PackCallbacks
from memwatch.record.saved_tensors import MODIFYING, HiddenHooks
from memwatch.record.tables.operands import Operands
from memwatch.record.tables.storages import Storages, WatchedStorage, WatchedTensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.capture.columns import IntArray
    from memwatch.record.backend import AllocatorEvents, Backend, Block, CallContext, CaptureStack, Listener
    from memwatch.record.interception import Handler, Interceptor, Libraries, OpKind
    from memwatch.record.native.binding import Extension, OpRunner, StackWalker
    from memwatch.record.saved_tensors import Hooks
    from memwatch.record.tables.rows import OpCounter, Stacks


class NativeKernels:
    """One boxed kernel for all overloads. Views skip it. See `memwatch.record.interception`."""

    def __init__(self, extension: Extension) -> None:
        self._extension = extension
        self._libraries: Libraries = {}
        self.work = functools.cache(self._probe)

    def put(self) -> None:
        """Register the kernel."""
        self._libraries = put_kernels(None)
        self._extension.put_kernel()

    def take_off(self) -> None:
        """Remove the kernel."""
        self._extension.take_kernel()
        self._libraries.clear()

    def _probe(self) -> bool:
        """Return True if ops run through the kernel and have the right result."""
        passed = self._extension.passed()
        interceptor = KeyInterceptor(self, _Nobody())
        works = passes(functools.partial(interceptor.start, _unused), interceptor.stop)
        return works and self._extension.passed() > passed


class NativeTarget:
    """Let the kernel call a recorder in C++. This needs no Python handler."""

    def __init__(self, recorder: OpRunner) -> None:
        self._recorder = recorder

    def begin(self, handler: Handler) -> None:
        """Let the kernel call the recorder."""
        self._recorder.intercept()

    def end(self) -> None:
        """Let the kernel only run the op."""
        self._recorder.release()


class _Nobody:
    """Let the kernel only run and count the ops."""

    def begin(self, handler: Handler) -> None:
        pass

    def end(self) -> None:
        pass


def _unused(kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise AssertionError("the compiled kernel calls no handler of Python's")


class NativeAllocatorEvents:
    """Receive the allocator's events in the place of each thread's torch profiler."""

    has_log_per_thread: Final = True

    def __init__(self, extension: Extension, block: Block) -> None:
        self._extension = extension
        self._native = extension.Allocator()
        self._block = block
        self._start_ticks = self._start_op = self.lost_events = 0
        self.is_open = False

    def open(self) -> bool:
        """Begin a window. Return False if something else is in the place of the torch profiler."""
        self.is_open = self._native.open()
        self._start_ticks, self._start_op = ticks(), self._block.op_counter[0]
        return self.is_open

    def close(self) -> list[Window]:
        """End the window, stop receiving events, and return the window."""
        self._native.close()
        self.is_open = False
        return self._windows()

    def memory_ran_out(self) -> None:
        """Do nothing, because the log makes room in advance."""

    def is_short_of_memory(self) -> bool:
        """Return False, because the log counts the events that did not fit."""
        return False

    def drop(self) -> None:
        """Stop receiving events."""
        self._native.drop()
        self.is_open = False

    def highs(self) -> dict[int, tuple[int, int]]:
        """Return the most live bytes of each device so far, beyond those at the start, and when in ticks."""
        name, strings = self._extension.device_name, self._block.strings
        return {strings(name(device)): (high, at) for device, high, at in self._native.highs()}

    def cut(self) -> list[Window] | None:
        """End the window, return it and begin the next one."""
        return self._windows()

    def forget_in_child(self) -> None:
        """Switch off in a forked child."""
        self._native.drop()
        set_log_level(None)

    def enter_thread(self, thread: int, /) -> Callable[[], object] | None:
        """Receive the events of this thread too, under its number. Return None if a torch profiler gets them."""
        return self._native.leave_thread if self._native.enter_thread(thread) else None

    def leave_thread(self) -> bool:
        """Stop receiving the events of this thread. Return whether they were received."""
        return self._native.leave_thread()

    def _windows(self) -> list[Window]:
        """Return the window up to now, and begin the next one, so that no event lies between windows.

        If events were lost because memory ran out, the window ends before the first lost event.
        """
        start_ticks, start_op = self._start_ticks, self._start_op
        events = None
        try:
            end_ticks = ticks()
            events, lost, lost_since_ticks = self._native.take()
            self._start_ticks, self._start_op = end_ticks, self._block.op_counter[0]
            self.lost_events += lost
            return [self._window(start_ticks, lost_since_ticks if lost else end_ticks, start_op, events)]
        except MemoryError:
            self.lost_events += 0 if events is None else len(events)
            return []

    def _window(self, start_ticks: int, end_ticks: int, start_op: int, events: IntArray) -> Window:
        clock, strings = self._block.clock, self._block.strings
        bounds = np.array([start_ticks, end_ticks])
        start_ns, end_ns = clock.to_ns(bounds).tolist()
        device = _named(events[:, 3], lambda number: strings(self._extension.device_name(number)))
        names = self._block.thread_names
        thread = _named(events[:, 4], lambda number: NONE if number == NONE else strings(names[number]))
        rows = np.column_stack([clock.to_ns(events[:, 0]), events[:, 1:3], device, thread, events[:, 5]])
        return Window(start_ns, end_ns, start_op, rows)


def _named(numbers: IntArray, name: Callable[[int], int]) -> IntArray:
    """Return `name(number)` for each number. It is called once for each distinct number."""
    found, at = np.unique(numbers, return_inverse=True)
    named: IntArray = np.array([name(number) for number in found.tolist()], dtype=np.int64)[at]
    return named


class NativePacker:
    """Append the rows of `packs` and `unpacks` in C++."""

    def __init__(
        self, extension: Extension, storages: Storages, context: CallContext, op_counter: OpCounter
    ) -> None:
        self._native = extension.SavedTensors(
            callbacks=PackCallbacks(storages, context.could_not_record),
            storages=storages.ledger,
            context=context,
            op_counter=op_counter,
        )
        self.packs = self._native.packs
        self.unpacks = self._native.unpacks
        self.hooks: Hooks = self._native.hooks()
        self.python_functions: tuple[Callable[..., Any], ...] = ()  # the hooks are C functions
        self.hidden_hooks = HiddenHooks(extension.original_of, functools.partial(extension.hook, MODIFYING))
        look_through(Capsule, extension.content_of)
        self.set_outer = self._native.set_outer
        self.set_keeper = self._native.set_keeper
        self.living_by_sequence = self._native.living_by_sequence
        self.close = self._native.close


class NativeOpRecorder:
    """Append the rows of `ops`, `uses`, `births` and `deaths` in C++."""

    def __init__(
        self,
        extension: Extension,
        kernels: NativeKernels,
        block: Block,
        *,
        storages: Storages,
        stacks: StackWalker,
        context: CallContext,
        listener: Listener,
    ) -> None:
        self._kernels = kernels
        self.uses = extension.Rows()
        self._native = extension.Recorder(
            callbacks=OpCallbacks(listener, Operands(storages, self.uses), block.strings),
            storages=storages.ledger,
            stacks=stacks,
            context=context,
            uses=self.uses,
            op_counter=block.op_counter,
        )
        self._run = self._native.run()
        self.ops = self._native.ops
        self.nodes = self._native.nodes
        self.views = self._native.views
        self.lifts = self._native.lifts
        self.numbers = self._native.numbers

    def run(self, kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op, record it, and return its result. An exception of the op passes unchanged."""
        return self._run(kind, args, kwargs)

    @property
    def losses(self) -> int:
        """How many records were lost because memory had run out."""
        return self._native.losses

    def interceptor(self, *, by_mode: bool) -> Interceptor:
        """Return the interceptor that passes every op to this recorder, if possible without Python frames."""
        if by_mode:
            return ModeInterceptor(self._native.dispatch())
        return KeyInterceptor(self._kernels, NativeTarget(self._native))

    def flush_at(self, op: int, at_ticks: int) -> None:
        """Call `Listener.flush_due` after the op of that number, or the first op that ends later than that."""
        self._native.flush_at(op, at_ticks)

    def close(self) -> None:
        """Stop recording, and let C++ release its Python objects."""
        self._native.close()


class NativeBackend:
    """The recorder written in C++."""

    name: Final = "native"

    def __init__(self, extension: Extension) -> None:
        extension.stamp_by_torch(TICKS_ARE_TORCHS)  # Python stamps rows and windows too
        self._extension = extension
        self._kernels = NativeKernels(extension)

    def key_works(self) -> bool:
        """Return True if the compiled kernel on the free dispatch key sees the ops. The probe runs once."""
        return self._kernels.work()

    def allocator_events(self, block: Block) -> AllocatorEvents | None:
        """Return the receiver of the allocator's events."""
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
        """Return the recorder of ops."""
        return NativeOpRecorder(
            self._extension, self._kernels, self._block,
            storages=self.storages, stacks=self._stacks, context=context, listener=listener,
        )  # fmt: skip

    def packer(self, context: CallContext) -> NativePacker:
        """Return the packer of the tensors that autograd saves."""
        return NativePacker(self._extension, self.storages, context, self._block.op_counter)


@functools.cache
def _backend_of(extension: Extension) -> NativeBackend:
    return NativeBackend(extension)


def backend() -> Backend | None:
    """Return the process's native backend, or None if it was never built or is switched off."""
    extension = library.load()
    return None if extension is None else _backend_of(extension)
