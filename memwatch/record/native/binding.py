"""The boundary to C++: Python functions that C++ calls, and functions of the compiled module `_recorder`.

`src/callbacks.h` binds the first part, and no other C++ file names an attribute of a Python object of memwatch.
`src/module.cpp` defines the second part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from memwatch._torch.dispatch import OpOverload, base_name_of, call_of, schema_of, takes_numbers_as_tensors
from memwatch._torch.dynamo import frame_callback
from memwatch._torch.modes import disable_torch_function
from memwatch.errors import MemwatchError
from memwatch.record.interception import ModeInterceptor, mode_kind
from memwatch.record.saved_tensors import DETACHED, inplace_error, saved_storage
from memwatch.signal_handlers import raised_by_handler

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from memwatch._torch.autograd_state import NodesBehind
    from memwatch.capture.columns import IntArray
    from memwatch.record.backend import CallContext, CaptureStack, Listener
    from memwatch.record.interception import OpKind
    from memwatch.record.saved_tensors import Hooks
    from memwatch.record.tables.operands import Operands
    from memwatch.record.tables.rows import Deaths, OpCounter, Strings, Table
    from memwatch.record.tables.storages import Ledger, Storages


class StackTable(Protocol):
    """The table of call stacks; see `memwatch.record.tables.rows.Stacks`."""

    @property
    def enabled(self) -> bool:
        """Whether stacks are captured at all."""

    @property
    def bounds(self) -> set[int]:
        """Addresses of the code objects that a walk stops at."""

    @property
    def engine(self) -> int:
        """Address of the code object of torch's frame around a whole backward."""

    def intern(self, key: tuple[int, ...], frame: Any) -> int:
        """Return the number of a stack that C++ sees for the first time."""


class OpCallbacks:
    """The Python functions that the op recorder in C++ calls.

    Attributes:
        string_id: numbers the name of an op.
        flush_due: writes the rows.
        op_failed: notes that an op raised.
        could_not_record: notes that the tensors of an op could not be recorded.
        frame_callback: returns dynamo's callback for the frames of this thread, or None.
        hand_on: `__torch_dispatch__` of the mode in Python, for calls that dynamo evaluates or a tensor subclass
            dispatches.
        passed_on: the class of errors that the program requested. Other errors do not stop an op.
        raised_by_handler: returns whether a signal handler of the program raised an exception. Such an exception passes
            too.
    """

    def __init__(self, listener: Listener, operands: Operands, strings: Strings) -> None:
        self.string_id: Callable[[str], int] = strings
        self.flush_due = listener.flush_due
        self.op_failed = listener.op_failed
        self._backward_begins = listener.backward_begins
        self._leaves_reached = listener.leaves_reached
        self.could_not_record = listener.could_not_record
        self.frame_callback = frame_callback
        self.hand_on: Callable[..., Any] = ModeInterceptor.__torch_dispatch__
        self.passed_on = MemwatchError
        self.raised_by_handler = raised_by_handler
        self._operands = operands

    def backward_begins(self, leaves: list[Tensor]) -> bool:
        """Note a backward at its first op, and its leaves. Return whether its storages are watched from birth."""
        holds = self._backward_begins()
        self._leaves_reached(leaves)
        return holds

    def storages_of(self, tensor: Tensor) -> list[tuple[int, int]]:
        """Return the number and the address of every storage that holds bytes of an argument."""
        with disable_torch_function():
            return self._operands.storages_of(tensor)

    def made(self, op: int, result: Tensor, given: list[int]) -> None:
        """Append the births of a result; `given` holds the addresses of the arguments' storages."""
        with disable_torch_function():
            self._operands.made(op, result, given)

    def resized(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Append the resizes of the arguments of an op that may resize them."""
        with disable_torch_function():
            self._operands.resized(args, kwargs)

    def overload_of(self, func: Any) -> tuple[OpKind | None, Callable[..., Any], Any, bool]:
        """Return the facts about an overload that a dispatch mode sees. C++ calls this once for each.

        Returns:
            Its kind (None for an op that is ignored), the function that runs it, its schema (None if only Python can
            call it), and whether it accepts numbers in place of tensors.
        """
        if not isinstance(func, OpOverload):
            return None, func, None, False
        return mode_kind(func), call_of(func), schema_of(func), takes_numbers_as_tensors(base_name_of(func))


class PackCallbacks:
    """The Python functions and values that the packs of saved tensors use.

    Attributes:
        passed_on: the class of errors that the program requested. Other errors do not stop a pack.
        raised_by_handler: returns whether a signal handler of the program raised an exception. Such an exception stops
            a pack too.
        could_not_record: notes that a saved tensor could not be recorded.
        inplace_error: returns the text of autograd's error for a tensor that was written after it was saved.
        detached_error: the text of the error about a saved tensor that was detached in place.
    """

    passed_on: type[Exception] = MemwatchError
    raised_by_handler = staticmethod(raised_by_handler)

    def __init__(self, storages: Storages, could_not_record: Callable[[str, Exception], None]) -> None:
        self._storages = storages
        self.could_not_record = could_not_record

    def describe(self, tensor: Tensor) -> tuple[int, int, int]:
        """Return the storage of a tensor that is not plain, the string id of its shape, and its bytes."""
        with disable_torch_function():  # no subclass or mode of the program sees these reads
            return saved_storage(self._storages, tensor)

    # it outlives the block, because packs stay in the program's graph
    inplace_error = staticmethod(inplace_error)
    detached_error = DETACHED


class StackWalker(Protocol):
    """Walks the running call stack."""

    @property
    def capture(self) -> CaptureStack:
        """Return the number of the running call stack; see `memwatch.record.backend.CaptureStack`."""


class OpRunner(Protocol):
    """Records ops. The kernel on the key calls it, or torch calls it as a mode's `__torch_dispatch__`."""

    @property
    def ops(self) -> Table:
        """Rows of the ops that ran."""

    @property
    def nodes(self) -> Table:
        """Rows of the nodes that ops of a backward made."""

    @property
    def views(self) -> Table:
        """Rows of the nodes that views made."""

    @property
    def lifts(self) -> Table:
        """Rows of the storages that torch made from Python's data."""

    @property
    def numbers(self) -> Table:
        """Rows of the dimensions and reductions among the arguments of ops."""

    def run(self) -> Callable[[OpKind, tuple[Any, ...], dict[str, Any]], Any]:
        """Return a C function that runs an op passed on by Python."""

    def dispatch(self) -> Callable[..., Any]:
        """Return a C function for a mode's `__torch_dispatch__`."""

    @property
    def losses(self) -> int:
        """How many records were lost because memory had run out."""

    def intercept(self) -> None:
        """Let the kernel on the key call this recorder."""

    def release(self) -> None:
        """Let the kernel on the key only run the op."""

    def flush_at(self, op: int, at_ticks: int, /) -> None:
        """Call `flush_due` after the op of that number, or the first op that ends later than that."""

    def close(self) -> None:
        """Stop recording, and release every Python object. A running op releases its objects when it ends."""


class TensorPacker(Protocol):
    """Packs the tensors that autograd saves."""

    @property
    def packs(self) -> Table:
        """Rows of the tensors that were saved."""

    @property
    def unpacks(self) -> Table:
        """Rows of their uses and their release."""

    def hooks(self) -> Hooks:
        """Return the pair (pack, unpack) of C functions."""

    def set_outer(self, hooks: Hooks | None, /) -> None:
        """Set hooks of the program, pushed before, that do the packing."""

    def set_keeper(self, keeper: object, /) -> None:
        """Set the object that every new pack holds."""

    def living_by_sequence(self) -> dict[int, list[int]]:
        """Return the numbers of the storages that autograd keeps now, by the sequence number of their node."""

    def close(self) -> None:
        """Stop appending rows, and release the block."""


class EventLog(Protocol):
    """Receives the allocator's events of this thread and of every entered thread."""

    def open(self) -> bool:
        """Begin to receive events in the place of this thread's torch profiler. Return False if there is one."""

    def close(self) -> None:
        """Stop receiving events. Any thread may call this."""

    def drop(self) -> None:
        """Stop receiving events, and drop the events that wait."""

    def take(self) -> tuple[IntArray, int, int]:
        """Return the events since the last call, how many were lost after them, and the time of the first lost one.

        An event is a row: ticks, address, signed bytes, number of the device, number of the thread, bytes that the
        allocator holds. If this call raises MemoryError, the next call counts its events as lost.
        """

    def highs(self) -> list[tuple[int, int, int]]:
        """Return the most live bytes of each device so far: its number, the bytes beyond those at `open`, and when."""

    def enter_thread(self, thread: int, /) -> bool:
        """Receive the events of this thread too, under its number. Return False if a torch profiler gets them."""

    def leave_thread(self) -> bool:
        """Stop receiving the events of this thread. Return whether they were received."""


class Extension(Protocol):
    """The compiled module `_recorder`."""

    @property
    def Rows(self) -> Callable[[], Table]:  # noqa: N802  # a class of the module
        """Makes a table in C++."""

    @property
    def Deaths(self) -> Callable[[], Deaths]:  # noqa: N802
        """Makes a queue of deaths in C++, each with its time."""

    def Storages(self, watched_storage: type, watched_tensor: type) -> Ledger:  # noqa: N802
        """Make the ledger of a table of storages."""

    def Stacks(self, table: StackTable, /) -> StackWalker:  # noqa: N802
        """Make the walker of call stacks. The table numbers the stacks."""

    def Recorder(  # noqa: N802
        self,
        *,
        callbacks: OpCallbacks,
        storages: Ledger,
        stacks: StackWalker,
        context: CallContext,
        uses: Table,
        op_counter: OpCounter,
    ) -> OpRunner:
        """Make a recorder of ops. It appends to `uses`, as Python does too."""

    def SavedTensors(  # noqa: N802
        self, *, callbacks: PackCallbacks, storages: Ledger, context: CallContext, op_counter: OpCounter
    ) -> TensorPacker:
        """Make the packer of saved tensors."""

    def Allocator(self) -> EventLog:  # noqa: N802
        """Make the receiver of the allocator's events."""

    def put_kernel(self) -> None:
        """Register the kernel on the dispatch key for every op that has no kernel of its own there."""

    def take_kernel(self) -> None:
        """Remove the kernel."""

    def passed(self) -> int:
        """Return how many ops the kernel saw while no recorder ran."""

    def autograd_state(self, tensor: Any, with_node: bool) -> tuple[Any, bool, bool, bool]:
        """Return autograd's state of a tensor: the fields of `memwatch._torch.autograd_state.AutogradState`."""

    def graph_walk(self, max_nodes: int) -> NodesBehind:
        """Make a walk along autograd's graph."""

    def original_of(self, packed: Any, /) -> Any:
        """Return the saved tensor of a pack. Return None if it is gone, or for any object but our pack."""

    def content_of(self, packed: Any, /) -> tuple[Any, Any] | None:
        """Return the content of our pack and the program's unpack hook. None for any other object."""

    def hook(self, modifying: str, packed: Any, pack_hook: Any, unpack_hook: Any, /) -> bool:
        """Let hooks of the program take over from a pack. `modifying` is the error's text if they write."""

    def stamp_by_torch(self, wanted: bool, /) -> None:
        """Choose torch's counter as the clock, or else `time.perf_counter_ns`."""

    def device_name(self, number: int, /) -> str:
        """Return the name of the device of an allocator event."""
