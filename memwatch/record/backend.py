"""The interfaces of a recorder. The Python recorder and the C++ recorder both implement them.

`memwatch.record.python` and `memwatch.record.native` each export one `Backend`. The backend makes a `Recorder` for each
block. The parts of the recorder write the rows of the block. Each part works with an object of a class that both
backends share:

| part of a recorder | shared class |
| --- | --- |
| `Ledger`: counts storages and bytes, and notes deaths | `tables.storages.Storages` |
| `capture_stack`: walks the running calls | `tables.rows.Stacks`: numbers the call stacks |
| `OpRecorder`: runs and records ops | `tables.operands.Operands`: finds the parts of tensors that consist of others |
| `saved_tensors.Packer`: packs saved tensors | `saved_tensors.SavedTensorHooks`: pushes and pops the hooks |
| `AllocatorEvents`: receives events | `allocator.AllocatorChannel`: stops when the program starts a torch profiler |
| `Kernels`, or a `__torch_dispatch__` | `interception.KeyInterceptor`, `interception.ModeInterceptor` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    from memwatch.capture.columns import IntArray
    from memwatch.record.clock import Clock
    from memwatch.record.interception import Interceptor, OpKind
    from memwatch.record.saved_tensors import Packer
    from memwatch.record.tables.rows import OpCounter, Stacks, Strings, Table
    from memwatch.record.tables.storages import Storages


class Backend(Protocol):
    """One implementation of the recorder. It lives as long as the process."""

    @property
    def name(self) -> str:
        """``python`` or ``native``. The capture stores this name."""

    def key_works(self) -> bool:
        """Return True if this backend's kernels on the free dispatch key see the ops. A probe op runs once."""

    def allocator_events(self, block: Block) -> AllocatorEvents | None:
        """Return the receiver of the allocator's events, or None if this torch has no such events."""

    def recorder(self, block: Block, stacks: Stacks) -> Recorder:
        """Return a recorder of one block. It numbers call stacks with `stacks`. Nothing in torch changes yet."""


@dataclass(frozen=True)
class Block:
    """The objects that all parts of a block's recorder share.

    Attributes:
        strings: numbers the texts.
        op_counter: how many ops have started.
        clock: converts ticks to nanoseconds.
        is_estimate: whether a fake tensor counts as the bytes of the real tensor that it stands for.
        note: adds a note to the report; called with its kind and its text.
        thread_names: names of the threads that started in the block. Their events carry an index of this list.
    """

    strings: Strings
    op_counter: OpCounter
    clock: Clock
    is_estimate: bool
    note: Callable[[str, str], None]
    thread_names: list[str]


class CallContext(Protocol):
    """The running module, stack and phase of the program. The recorder reads them for every op.

    Attributes:
        top: number of the innermost running module, and number of the call stack at its call. Each is -1 for none.
        optimizing: whether an optimizer's step is running.
        graph_task: number of the backward that ran the last op. The recorder sets it. `backward_ended` resets it to -1.
        thread: id of the thread whose module calls are seen. This is the block's thread, or an autograd thread while
            it recomputes a checkpointed region.
        recomputing: number of the backward that recomputes a region in that thread; -2 if none does.
        saves_inputs: whether a checkpoint is saving the inputs of its region. No autograd node needs these tensors.
        is_asleep: whether the schedule skips the running step.
    """

    top: tuple[int, int]
    optimizing: bool
    graph_task: int
    thread: int
    recomputing: int
    saves_inputs: bool
    is_asleep: bool

    @property
    def could_not_record(self) -> Callable[[str, Exception], None]:
        """A function that notes that something could not be recorded; called with its name and the error."""

    @property
    def recomputes_by_hand(self) -> Callable[[], bool]:
        """A function that returns True if an autograd.Function computes its forward again in its own `backward`.

        The recorder calls it for an op that runs with grad mode on, in a backward without `create_graph`.
        """

    def backward_ended(self) -> None:
        """Note that a backward has ended. The recorder calls this before the first op after it."""


class Listener(Protocol):
    """The methods of the session that the op recorder calls."""

    def flush_due(self) -> None:
        """Write the rows if that is worth it. The recorder calls this after an op, see `OpRecorder.flush_at`."""

    def op_failed(self) -> None:
        """Note that an op raised an error. The recorder calls this while the arguments of the op are alive."""

    def backward_begins(self) -> bool:
        """Note that a backward runs its first op. Return True to watch its new storages through their Python objects.

        Such an object is an owner of its storage, so autograd then adds gradients out of place. Without it, only the
        allocator's events show when the storage is freed.
        """

    def leaves_reached(self, leaves: Iterable[Tensor], /) -> None:
        """Note leaves that may get gradients from the running backward.

        The recorder calls this several times in a backward, each time with other leaves that have no gradient yet.
        """

    def could_not_record(self, op: str, error: Exception) -> None:
        """Note that the tensors of an op could not be recorded. The op itself ran."""


class CaptureStack(Protocol):
    """A function that numbers the running call stack."""

    def __call__(self, outer: int, task: int, depth: int = 3, /) -> int:
        """Return the number of the running call stack; -1 if stacks are not captured.

        Args:
            outer: number of the call stack at the innermost running module call; -1 if no module runs.
            task: number of the running backward; -1 outside of a backward.
            depth: how many frames to leave out. The innermost one is the frame of this function.
        """


class Recorder(Protocol):
    """Makes the parts that record one block. It makes each part once, and its parts may share data."""

    @property
    def storages(self) -> Storages:
        """The table of storages."""

    @property
    def capture_stack(self) -> CaptureStack:
        """The function that numbers the running call stack."""

    def ops(self, context: CallContext, listener: Listener) -> OpRecorder:
        """Return the recorder of ops."""

    def packer(self, context: CallContext) -> Packer:
        """Return the packer of the tensors that autograd saves."""


class OpRecorder(Protocol):
    """Runs and records the ops that an interceptor passes to it.

    It appends rows to `ops`, `nodes`, `views`, `lifts`, `numbers`, `uses`, `births` and `deaths`.
    """

    @property
    def ops(self) -> Table:
        """Rows of the ops that ran."""

    @property
    def nodes(self) -> Table:
        """Rows of the autograd nodes that ops of a backward made (`create_graph=True`)."""

    @property
    def views(self) -> Table:
        """Rows of the autograd nodes that views made."""

    @property
    def lifts(self) -> Table:
        """Rows of the storages that torch made from Python's data, see `interception.LIFT`."""

    @property
    def numbers(self) -> Table:
        """Rows of the numbers among the arguments of ops that mean a dimension or a reduction."""

    @property
    def uses(self) -> Table:
        """Rows of the storages that ops read, wrote and made."""

    @property
    def losses(self) -> int:
        """How many rows were lost because memory had run out, while not even a note could be added."""

    def run(self, kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any:
        """Run an op, record it, and return its result. An exception of the op passes unchanged."""

    def interceptor(self, *, by_mode: bool) -> Interceptor:
        """Return the interceptor that passes every op to this recorder: a dispatch mode, or kernels on the free key."""

    def flush_at(self, op: int, at_ticks: int) -> None:
        """Call `Listener.flush_due` after op number `op`, or after the first op that ends later than `at_ticks`."""

    def close(self) -> None:
        """Stop recording. A recorder in C++ also releases its Python objects."""


@dataclass(frozen=True)
class Window:
    """The allocator's events of one window of time.

    Attributes:
        start_ns: unix time at which the window began, in nanoseconds.
        end_ns: unix time at which it ended, in nanoseconds.
        start_op: how many ops had started when it began.
        events: rows of the table `allocator` without its last column, `window`.
    """

    start_ns: int
    end_ns: int
    start_op: int
    events: IntArray


class AllocatorEvents(Protocol):
    """Receives the allocator's events of the block's thread, in windows of time."""

    @property
    def is_open(self) -> bool:
        """Whether a window is open. It is not open after a `cut` that failed to begin the next window."""

    @property
    def lost_events(self) -> int:
        """How many events were lost because memory had run out. The windows leave out the time of these events."""

    @property
    def has_log_per_thread(self) -> bool:
        """Whether each thread has a log of its own. If not, a torch profiler in any thread ends all events."""

    def open(self) -> bool:
        """Begin a window. Return False if a torch profiler already receives the events of this thread."""

    def close(self) -> list[Window]:
        """End the window and return it. Return an empty list if its events were lost."""

    def cut(self) -> list[Window] | None:
        """End the window, return it and begin the next one. Return None if the window cannot end now."""

    def highs(self) -> dict[int, tuple[int, int]]:
        """Return the highest live bytes of each device so far, and the time in ticks at which it had them.

        The key is the string id of the device's name. The bytes that were live at the start do not count. Only devices
        with events have an entry.
        """

    def memory_ran_out(self) -> None:
        """Make room for the next events, because memory may have run out."""

    def is_short_of_memory(self) -> bool:
        """Return True if the window must end now. An event without memory would crash the process."""

    def drop(self) -> None:
        """End a window whose events were lost, because the program started a profiler in another thread."""

    def enter_thread(self, thread: int, /) -> Callable[[], object] | None:
        """Receive the events of the current thread too, under the number `thread`.

        Return the function that stops this. Return None if the events of this thread cannot be received. The thread may
        run on after the block, so the returned function holds nothing of the recording.
        """

    def leave_thread(self) -> bool:
        """Stop receiving the events of the current thread, which `enter_thread` began. Return whether it did so."""

    def forget_in_child(self) -> None:
        """Stop receiving events in a forked child. The window of the parent cannot end there."""
