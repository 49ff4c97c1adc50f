"""The contract of a recorder, which both the Python recorder and the C++ recorder fulfil.

`memwatch.record.python` and `memwatch.record.native` each export one `Backend`. The backend makes a `Recorder` for each
block, and the recorder's parts write the rows of the block. Code that both implementations need is shared by
composition: the session wraps each part in an object that is the same for both.

| part of a recorder | object around it, the same for both |
| --- | --- |
| `Ledger` (how many storages, how many bytes; the deaths) | `tables.storages.Storages` |
| `capture_stack` (walks the running calls) | `tables.rows.Stacks`, which numbers stacks |
| `OpRecorder` | `tables.operands.Operands`, which looks into tensors of parts |
| `saved_tensors.Packer` (packs saved tensors) | `saved_tensors.SavedTensorHooks`, which pushes and pops the hooks |
| `AllocatorEvents` | `allocator.AllocatorChannel`, which gives way to the program's own profiler |
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
        """Return True if this backend's kernels on the free dispatch key see the ops. The probe runs once."""

    def allocator_events(self, block: Block) -> AllocatorEvents | None:
        """Return the receiver of the allocator's events, or None if this torch provides none."""

    def recorder(self, block: Block, stacks: Stacks) -> Recorder:
        """Return a recorder of one block, which numbers call stacks in `stacks`. This does not change torch yet."""


@dataclass(frozen=True)
class Block:
    """The objects that all parts of a block's recorder share.

    Attributes:
        strings: numbers for texts.
        op_counter: how many ops have started.
        clock: turns ticks into nanoseconds.
        is_estimate: whether fake tensors count, with the bytes that real tensors would take.
        note: called with the kind and the text of a sentence for the report.
        thread_names: names of the threads that started in the block, by the numbers that their events carry.
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
        top: numbers of the innermost running module and of the call stack above its call, each -1 for none.
        optimizing: whether an optimizer's step is running.
        graph_task: number of the backward that ran the last op. The recorder sets it, and `backward_ended` resets it
            to -1.
        thread: the thread whose module calls are seen: the block's own, or an autograd thread while it recomputes a
            region.
        recomputing: the graph task that runs a checkpointed region again in that thread, or -2.
        saves_inputs: whether a checkpoint is saving the inputs of a region now, which no node needs.
        is_asleep: whether the step that runs is not recorded.
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
        """Note that something could not be recorded."""

    @property
    def recomputes_by_hand(self) -> Callable[[], bool]:
        """Return True if a Function's own backward computes its forward again.

        The recorder calls this in a backward that keeps no graph, while gradients are on.
        """

    def backward_ended(self) -> None:
        """Note that a backward has ended. The recorder calls this at the first op after it."""


class Listener(Protocol):
    """The methods of the session that the op recorder calls."""

    def flush_due(self) -> None:
        """Write the rows. The recorder calls this after the op that `OpRecorder.flush_at` set."""

    def op_failed(self) -> None:
        """Note that an op raised. Its arguments are still alive."""

    def backward_begins(self) -> bool:
        """Note the first op of a backward. Return True if its storages must be watched from birth."""

    def leaves_reached(self, leaves: Iterable[Tensor], /) -> None:
        """Note leaves that may get gradients from the running backward. Called in parts, before the gradients exist."""

    def could_not_record(self, op: str, error: Exception) -> None:
        """Note that the tensors of an op could not be recorded. The op itself ran."""


class CaptureStack(Protocol):
    """Numbers the running call stack."""

    def __call__(self, outer: int, task: int, depth: int = 3, /) -> int:
        """Return the number of the running call stack; -1 if stacks are not captured.

        Args:
            outer: number of the stack above the module call that is running, -1 outside any.
            task: number of the autograd graph task that is running, -1 outside backward.
            depth: how many of the innermost frames to leave out, counted from the frame of this function.
        """


class Recorder(Protocol):
    """Makes the parts that record one block, each once. The parts may share data."""

    @property
    def storages(self) -> Storages:
        """The table of storages; empty at first."""

    @property
    def capture_stack(self) -> CaptureStack:
        """The function that numbers the running call stack."""

    def ops(self, context: CallContext, listener: Listener) -> OpRecorder:
        """Return the recorder of ops."""

    def packer(self, context: CallContext) -> Packer:
        """Return the packer of the tensors that autograd saves."""


class OpRecorder(Protocol):
    """Runs the ops that an interceptor hands it.

    It appends rows of `ops`, `nodes`, `views`, `lifts`, `numbers`, `uses`, `births` and `deaths`.
    """

    @property
    def ops(self) -> Table:
        """Rows of the ops that ran."""

    @property
    def nodes(self) -> Table:
        """Rows of the nodes that ops of a backward made for another backward."""

    @property
    def views(self) -> Table:
        """Rows of the nodes that views made."""

    @property
    def lifts(self) -> Table:
        """Rows of the storages that torch made from Python's data."""

    @property
    def numbers(self) -> Table:
        """Rows of the dimensions and reductions among the arguments of ops."""

    @property
    def uses(self) -> Table:
        """Rows of the storages that ops read, wrote and made."""

    @property
    def losses(self) -> int:
        """How many records were lost because memory had run out, without a note."""

    def run(self, kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any:
        """Run an op, record it, and return its result. An exception of the op passes unchanged."""

    def interceptor(self, *, by_mode: bool) -> Interceptor:
        """Return the interceptor that passes every op to this recorder: a dispatch mode, or kernels on the free key."""

    def flush_at(self, op: int, at_ticks: int) -> None:
        """Call `Listener.flush_due` after the op of that number, or the first op that ends later than that."""

    def close(self) -> None:
        """Stop recording, and release every Python object."""


@dataclass(frozen=True)
class Window:
    """The allocator's events between two times.

    Attributes:
        start_ns: when it began, in unix nanoseconds.
        end_ns: when it ended.
        start_op: how many ops had started when it began.
        events: one row per event: unix nanoseconds, address, bytes (negative for a free), string id of the device, and
            string id of the thread's name (-1 for the recording thread).
    """

    start_ns: int
    end_ns: int
    start_op: int
    events: IntArray


class AllocatorEvents(Protocol):
    """Receives the allocator's events of this thread, in windows of time."""

    @property
    def is_open(self) -> bool:
        """Whether a window is open. False after a `cut` that could not begin the next one."""

    @property
    def lost_events(self) -> int:
        """How many events were lost because memory had run out. No window covers their time."""

    @property
    def has_log_per_thread(self) -> bool:
        """Whether each thread has a log of its own. If not, one profiler in any thread ends all events."""

    def open(self) -> bool:
        """Begin a window. Return False if another profiler gets the events of this thread."""

    def close(self) -> list[Window]:
        """End the window and return it. Return an empty list if its events were lost."""

    def cut(self) -> list[Window] | None:
        """End the window, return it and begin the next one. Return None where a window must go on."""

    def highs(self) -> dict[int, tuple[int, int]]:
        """Return the most live bytes of each device so far, beyond those at the start, and when in ticks.

        The key is the string id of the device's name. A device without events, or without figures so far, is missing.
        """

    def memory_ran_out(self) -> None:
        """Make room for the next events, because an op failed and memory may have run out."""

    def is_short_of_memory(self) -> bool:
        """Return True if the window must end now, because an event without memory would end the process."""

    def drop(self) -> None:
        """End a window that lost its events because a profiler began in another thread."""

    def enter_thread(self, thread: int, /) -> Callable[[], object] | None:
        """Receive the events of this thread too, under its number. Return the function that ends this, or None.

        The thread may outlive the block, so the returned function holds nothing of the recording.
        """

    def leave_thread(self) -> bool:
        """Stop receiving the events of this thread, which is not the block's own. Return whether they were received."""

    def forget_in_child(self) -> None:
        """Switch off in a forked child, where no window can be ended."""
