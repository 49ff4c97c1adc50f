"""What Python calls of the compiled module `_recorder`; `src/module.cpp` defines it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch._torch.autograd_state import NodesBehind
    from memwatch.capture.packed import IntArray
    from memwatch.record.backend import CallContext, CaptureStack
    from memwatch.record.interception.kinds import OpKind
    from memwatch.record.native.callbacks import OpCallbacks, PackCallbacks, StackTable
    from memwatch.record.saved.disguise import Hooks
    from memwatch.record.tables.deaths import Deaths
    from memwatch.record.tables.op_counter import OpCounter
    from memwatch.record.tables.rows import Table
    from memwatch.record.tables.storages import Ledger


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
