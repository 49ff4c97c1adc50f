"""What a recorder is: the contract that the one in Python and the one in C++ both keep.

`memwatch.record.python` and `memwatch.record.native` each export one `Backend`. A block asks its backend for a
`Recorder`, whose parts write the rows of the block. What both implementations need is shared by composition:
the session wraps each part in an object that is the same for both.

| part of a recorder | object around it, the same for both |
| --- | --- |
| `Ledger` (how many storages, how many bytes; the deaths) | `tables.storages.Storages` |
| `capture_stack` (walks the running calls) | `tables.stacks.Stacks`, which numbers stacks |
| `OpRecorder` | `tables.operands.Operands`, which looks into tensors of parts |
| `saved.packer.Packer` (packs saved tensors) | `saved.hooks.SavedTensorHooks`, which puts hooks on and off |
| `AllocatorEvents` | `allocator.channel.AllocatorChannel`, which steps aside for the program's own profiler |
| `Kernels`, or a `__torch_dispatch__` | `interception.key.KeyInterceptor`, `interception.mode.ModeInterceptor` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    from memwatch.capture.packed import IntArray
    from memwatch.record.clock import Clock
    from memwatch.record.interception.interceptor import Interceptor
    from memwatch.record.interception.kinds import OpKind
    from memwatch.record.saved_tensors import Packer
    from memwatch.record.tables.rows import OpCounter, Strings, Table
    from memwatch.record.tables.stacks import Stacks
    from memwatch.record.tables.storages import Storages


class Backend(Protocol):
    """One implementation of the recorder, for as long as the process lives."""

    @property
    def name(self) -> str:
        """``python`` or ``native``: what the capture says it was recorded by."""

    def key_works(self) -> bool:
        """Return True if ops can be seen by this backend's kernels on the free dispatch key; probe once."""

    def allocator_events(self, block: Block) -> AllocatorEvents | None:
        """Return what receives the allocator's own events; None where this torch hands out none."""

    def recorder(self, block: Block, stacks: Stacks) -> Recorder:
        """Return a recorder of one block, which numbers call stacks in `stacks`; nothing of torch is touched yet."""


@dataclass(frozen=True)
class Block:
    """What every part of a block's recorder shares.

    Attributes:
        strings: numbers for texts.
        op_counter: how many ops have started.
        clock: turns ticks into nanoseconds.
        is_estimate: whether fake tensors count, with the bytes that real ones would take.
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
    """What is running while an op runs: a recorder reads it for every op.

    Attributes:
        top: numbers of the innermost running module and of the call stack above its call, each -1 for none.
        optimizing: whether an optimizer's step is running.
        graph_task: the backward of the last op, set by the recorder; `backward_ended` sets it to -1, that of none.
        thread: whose module calls are seen: the block's, or one of autograd's while a region runs again in it.
        recomputing: the graph task in which a checkpointed region runs again in that thread, -2 while none does.
        saves_inputs: whether a checkpoint keeps the inputs of a region now: no node needs them.
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
        """Note that something could not be looked into."""

    @property
    def recomputes_by_hand(self) -> Callable[[], bool]:
        """Return True if a Function's own backward computes its forward again.

        Asked in a backward that keeps no graph, with gradients on.
        """

    def backward_ended(self) -> None:
        """Hear that a backward has ended; a recorder calls it at the first op after it."""


class Listener(Protocol):
    """What a recorder of ops tells and asks the session."""

    def flush_due(self) -> None:
        """Write the rows; called after the op that `OpRecorder.flush_at` named."""

    def op_failed(self) -> None:
        """Hear that an op raised; what it was given is still alive."""

    def backward_begins(self) -> bool:
        """Hear of the first op of a backward; return True if storages are watched from their birth in it too."""

    def leaves_reached(self, leaves: Iterable[Tensor], /) -> None:
        """Hear which leaves the backward that runs may give gradients, in parts, before it does."""

    def could_not_record(self, op: str, error: Exception) -> None:
        """Note that the tensors of an op could not be looked into; the op itself ran."""


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
    """Makes the parts that record one block, each once; they may share what they know."""

    @property
    def storages(self) -> Storages:
        """The table of storages; empty at first."""

    @property
    def capture_stack(self) -> CaptureStack:
        """What numbers the running call stack."""

    def ops(self, context: CallContext, listener: Listener) -> OpRecorder:
        """Return what records the ops."""

    def packer(self, context: CallContext) -> Packer:
        """Return what packs the tensors that autograd saves."""


class OpRecorder(Protocol):
    """Runs the ops that an interceptor hands it.

    It appends rows of `ops`, `nodes`, `views`, `lifts`, `uses`, `births` and `deaths`.
    """

    @property
    def ops(self) -> Table:
        """Rows of the ops that ran."""

    @property
    def nodes(self) -> Table:
        """Rows of the nodes that ops of a backward made, for another backward."""

    @property
    def views(self) -> Table:
        """Rows of the nodes that views made."""

    @property
    def lifts(self) -> Table:
        """Rows of the storages that torch made of Python's data."""

    @property
    def uses(self) -> Table:
        """Rows of the storages that ops read, wrote and made."""

    @property
    def losses(self) -> int:
        """How often something could not be noted because memory had run out, and no note says so."""

    def run(self, kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Any:
        """Run an op and record it; its result or its exception is passed on as it is."""

    def interceptor(self, *, by_mode: bool) -> Interceptor:
        """Return what hands it every op: a dispatch mode or kernels on the free dispatch key."""

    def flush_at(self, op: int, at_ticks: int) -> None:
        """Call `Listener.flush_due` after the op of that number, or the first op that ends later than that."""

    def close(self) -> None:
        """Record no more, and let go of every object of Python's."""


@dataclass(frozen=True)
class Window:
    """The allocator's events of a stretch of time.

    Attributes:
        start_ns: when it began, in unix nanoseconds.
        end_ns: when it ended.
        start_op: how many ops had started when it began.
        events: a row for each: unix nanoseconds, address, bytes (negative for a free), string ids of the device and of
            the name of the thread, -1 for the one that recorded.
    """

    start_ns: int
    end_ns: int
    start_op: int
    events: IntArray


class AllocatorEvents(Protocol):
    """Receives the allocator's events of this thread, in windows of time."""

    @property
    def is_open(self) -> bool:
        """Whether a window is open; False after a `cut` that could not begin the next."""

    @property
    def lost_events(self) -> int:
        """How many events were lost because memory had run out; the windows leave out the time of their events."""

    @property
    def hears_each_thread(self) -> bool:
        """Whether each thread has a log: a profiler in one leaves the others alone. Else all of the process is one."""

    def open(self) -> bool:
        """Begin a window; return False if the events of this thread go to somebody else."""

    def close(self) -> list[Window]:
        """End it and return it; an empty list if its events were lost."""

    def cut(self) -> list[Window] | None:
        """End the window, return it and begin the next; None if no window can end here."""

    def memory_ran_out(self) -> None:
        """Make room for the events that follow: an op has failed, perhaps because memory ran out."""

    def is_short_of_memory(self) -> bool:
        """Return True if the window must end now, because events without memory for them would end the process."""

    def drop(self) -> None:
        """End the window, whose events are lost: a profiler has begun in another thread since."""

    def enter_thread(self, thread: int, /) -> Callable[[], object] | None:
        """Receive the events of this thread too, with its number; return what ends that, None if it cannot be heard.

        The thread may outlive the block, so what is returned holds nothing of the recording.
        """

    def leave_thread(self) -> bool:
        """Receive no more events of this thread, which is not the one of the block; return whether they were."""

    def forget_in_child(self) -> None:
        """Be off in a forked child, where no window can be ended."""
