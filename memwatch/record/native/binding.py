"""The boundary to C++: what C++ calls of Python, and what Python calls of the compiled module `_recorder`.

`src/callbacks.h` binds the first part, and no other C++ file names an attribute of a Python object of memwatch.
`src/module.cpp` defines the second part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from memwatch._torch.dispatch import OpOverload, base_name_of, call_of, schema_of, takes_numbers_as_tensors
from memwatch._torch.dynamo import frame_callback
from memwatch._torch.modes import disable_torch_function
from memwatch.errors import MemwatchError
from memwatch.record.interception.kinds import mode_kind
from memwatch.record.interception.mode import ModeInterceptor
from memwatch.signal_handlers import raised_by_handler

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from memwatch._torch.autograd_state import NodesBehind
    from memwatch.capture.packed import IntArray
    from memwatch.record.backend import CallContext, CaptureStack, Listener
    from memwatch.record.interception.kinds import OpKind
    from memwatch.record.saved_tensors import Hooks
    from memwatch.record.tables.operands import Operands
    from memwatch.record.tables.rows import Deaths, OpCounter, Strings, Table
    from memwatch.record.tables.storages import Ledger


class StorageTable(Protocol):
    """The table of storages: C++ appends most births and deaths; see `memwatch.record.tables.storages.Storages`."""

    @property
    def live(self) -> dict[int, Any]:
        """What watches each storage that lives, by the address of the storage."""

    @property
    def roles(self) -> dict[int, int]:
        """A bit for each role that is noted, of the storages that live."""

    @property
    def dead(self) -> Deaths:
        """Weak references whose callback ran: an object of C++'s own, which appends through them and takes them off."""

    @property
    def births(self) -> Table:
        """Rows of C++'s own kind."""

    @property
    def deaths(self) -> Table:
        """Rows of C++'s own kind."""

    @property
    def estimate(self) -> bool:
        """Whether fake tensors count."""

    def shape_id(self, tensor: Tensor) -> int:
        """Return the string id of a tensor's dtype and shape; C++ asks once for each."""

    def device_id(self, tensor: Tensor) -> int:
        """Return the string id of a tensor's device; C++ asks once for each."""

    def above_watched(self, device: int, nbytes: int, workspace_bytes: int) -> None:
        """Call who waits for a birth of so many bytes on a device, or raise the error of the limit."""


class StackTable(Protocol):
    """The table of call stacks; see `memwatch.record.tables.stacks.Stacks`."""

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
    """What the recorder of ops asks for: of the session, and where tensors are not plain.

    Attributes:
        string_id: numbers the name of an op.
        flush_due: writes the rows.
        op_failed: hears that an op raised.
        could_not_record: says that the tensors of an op could not be looked into.
        frame_callback: returns what dynamo evaluates the frames of this thread with, None where it does not.
        hand_on: `__torch_dispatch__` of the mode, for what dynamo or a tensor subclass must not meet in C++.
        passed_on: the class of the errors that the program asked for; others do not stop an op.
        raised_by_handler: tells that a signal handler of the program raised an exception: it passes too.
    """

    def __init__(self, listener: Listener, operands: Operands, strings: Strings) -> None:
        self.string_id: Callable[[str], int] = strings
        self.flush_due = listener.flush_due
        self.op_failed = listener.op_failed
        self._backward_begins, self._leaves_reached = listener.backward_begins, listener.leaves_reached
        self.could_not_record = listener.could_not_record
        self.frame_callback = frame_callback
        self.hand_on: Callable[..., Any] = ModeInterceptor.__torch_dispatch__
        self.passed_on = MemwatchError
        self.raised_by_handler = raised_by_handler
        self._operands = operands

    def backward_begins(self, leaves: list[Tensor]) -> bool:
        """Hear of a backward at its first op, and of its leaves; return if storages are watched from birth in it."""
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
        """Append the resizes of what was given to an op that may resize it."""
        with disable_torch_function():
            self._operands.resized(args, kwargs)

    def overload_of(self, func: Any) -> tuple[OpKind | None, Callable[..., Any], Any, bool]:
        """Return what is to be known of something that a dispatch mode sees; asked once for each.

        Returns:
            Its kind, None if it is not recorded; what runs it; its schema, None if C++ cannot call it itself; and
            whether numbers may stand where its schema wants tensors.
        """
        if not isinstance(func, OpOverload):
            return None, func, None, False
        return mode_kind(func), call_of(func), schema_of(func), takes_numbers_as_tensors(base_name_of(func))


class PackCallbacks(Protocol):
    """What the packs of saved tensors ask for."""

    @property
    def passed_on(self) -> type[Exception]:
        """The class of the errors that the program asked for; others do not stop a pack."""

    @property
    def raised_by_handler(self) -> Callable[[BaseException], bool]:
        """Tells that a signal handler of the program raised an exception: it stops a pack too."""

    @property
    def could_not_record(self) -> Callable[[str, Exception], None]:
        """Note that a saved tensor could not be looked into."""

    def describe(self, tensor: Tensor) -> tuple[int, int, int]:
        """Return the storage of a tensor that is not plain, the string id of its shape, and its bytes."""

    @property
    def detached_error(self) -> str:
        """The text of the error about a saved tensor that was detached in place."""

    def inplace_error(self, pack: Any) -> str:
        """Return the text of autograd's error for a tensor that was written after it was saved."""


class StackWalker(Protocol):
    """Walks the running call stack."""

    @property
    def capture(self) -> CaptureStack:
        """Return the number of the running call stack; see `memwatch.record.backend.CaptureStack`."""


class OpRunner(Protocol):
    """Records ops, called by the kernel on the key or as a mode's `__torch_dispatch__`."""

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
        """Rows of the storages that torch made of Python's data."""

    def run(self) -> Callable[[OpKind, tuple[Any, ...], dict[str, Any]], Any]:
        """Return a function of C's that runs an op that Python hands on."""

    def dispatch(self) -> Callable[..., Any]:
        """Return a function of C's for a mode's `__torch_dispatch__`."""

    @property
    def losses(self) -> int:
        """How often something could not be noted because memory had run out."""

    def intercept(self) -> None:
        """Have the kernel on the key call this recorder."""

    def release(self) -> None:
        """Have the kernel on the key call nobody."""

    def flush_at(self, op: int, at_ticks: int, /) -> None:
        """Call `flush_due` after the op of that number, or the first op that ends later than that."""

    def close(self) -> None:
        """Record no more, and let go of every object of Python's; an op that is running lets go when it ends."""


class TensorPacker(Protocol):
    """Packs what autograd saves."""

    @property
    def packs(self) -> Table:
        """Rows of the tensors that were saved."""

    @property
    def unpacks(self) -> Table:
        """Rows of their uses and their release."""

    def hooks(self) -> Hooks:
        """Return the pair (pack, unpack), functions of C's."""

    def set_outer(self, hooks: Hooks | None, /) -> None:
        """Have the hooks that the program pushed before do the packing."""

    def set_keeper(self, keeper: object, /) -> None:
        """Have every pack hold an object from now on."""

    def living_by_sequence(self) -> dict[int, list[int]]:
        """Return the numbers of the storages that autograd keeps now, by the sequence number of the node."""

    def close(self) -> None:
        """Append no more rows, and let go of the block."""


class EventLog(Protocol):
    """Receives the allocator's events of this thread, and of every thread that enters."""

    def open(self) -> bool:
        """Begin to receive, in the place of a torch profiler of this thread; return False where one stands there."""

    def close(self) -> None:
        """Stop receiving; any thread may call this."""

    def drop(self) -> None:
        """Stop receiving, and drop what nobody took."""

    def take(self) -> tuple[IntArray, int, int]:
        """Return the events since the last time: ticks, address, signed bytes, numbers of the device and the thread.

        Then how many more were lost because memory had run out, and from which time on in ticks. The next call counts
        what this call loses, if it raises MemoryError.
        """

    def enter_thread(self, thread: int, /) -> bool:
        """Receive the events of this thread too, with its number; False where a torch profiler hears it."""

    def leave_thread(self) -> bool:
        """Receive no more events of this thread; return whether they were received."""


class Extension(Protocol):
    """The module."""

    @property
    def Rows(self) -> Callable[[], Table]:  # noqa: N802  # a class of the module
        """Makes a table in C++."""

    @property
    def Deaths(self) -> Callable[[], Deaths]:  # noqa: N802
        """Makes what notes deaths in C++, each with its time."""

    def Storages(self, watched_storage: type, watched_tensor: type) -> Ledger:  # noqa: N802
        """Make the ledger of a table of storages."""

    def Stacks(self, table: StackTable, /) -> StackWalker:  # noqa: N802
        """Make what walks stacks, and has a table number them."""

    def Recorder(  # noqa: N802
        self, *, callbacks: OpCallbacks, storages: Ledger, stacks: StackWalker, context: CallContext, uses: Table,
        op_counter: OpCounter,
    ) -> OpRunner:  # fmt: skip
        """Make a recorder of ops, which appends to `uses` beside Python."""

    def SavedTensors(  # noqa: N802
        self, *, callbacks: PackCallbacks, storages: Ledger, context: CallContext, op_counter: OpCounter
    ) -> TensorPacker:
        """Make what packs saved tensors."""

    def Allocator(self) -> EventLog:  # noqa: N802
        """Make what receives the allocator's events."""

    def put_kernel(self) -> None:
        """Put the kernel on the dispatch key, for every op that has none of its own there."""

    def take_kernel(self) -> None:
        """Take it off."""

    def passed(self) -> int:
        """Return how many ops the kernel saw while no recorder ran."""

    def autograd_state(self, tensor: Any, with_node: bool) -> tuple[Any, bool, bool, bool]:
        """Return what autograd has noted of a tensor: the fields of `memwatch._torch.autograd_state.AutogradState`."""

    def GraphWalk(self, max_nodes: int, /) -> NodesBehind:  # noqa: N802
        """Make what walks along autograd's graph."""

    def original_of(self, packed: Any, /) -> Any:
        """Return the tensor that a pack stands for; None if it is gone, or if another packed it."""

    def content_of(self, packed: Any, /) -> tuple[Any, Any] | None:
        """Return what a pack of ours keeps, and the program's hook that unpacks it; None for any other object."""

    def hook(self, modifying: str, packed: Any, pack_hook: Any, unpack_hook: Any, /) -> bool:
        """Have hooks of the program take over from a pack; `modifying` words the error if they write what they get."""

    def stamp_by_torch(self, wanted: bool, /) -> None:
        """Have the clock be torch's counter, else that of `time.perf_counter_ns`."""

    def device_name(self, number: int, /) -> str:
        """Return the name of the device of an allocator event."""
