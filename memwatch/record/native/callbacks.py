"""What C++ reads and calls of Python, all of it: `src/callbacks.h` binds these names, and no other C++ file has any.

C++ keeps bound methods of these objects, and they refer to C++ in turn: a circle that Python's collector cannot
see. It ends when the block ends and the parts of its recorder are closed.
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

    from memwatch.record.backend import Listener
    from memwatch.record.interception.kinds import OpKind
    from memwatch.record.tables.deaths import Deaths
    from memwatch.record.tables.operands import Operands
    from memwatch.record.tables.rows import Table
    from memwatch.record.tables.strings import Strings


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
