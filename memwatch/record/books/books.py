"""All books of torch that a block reads, switched on and off together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from memwatch._torch.dynamo import leave_alone
from memwatch.record.books.autocast import AutocastBook
from memwatch.record.books.ddp import ReducerBook
from memwatch.record.books.fsdp import FlatParameterBook, ParameterGroupBook
from memwatch.record.books.selective import SelectiveBook
from memwatch.record.patches import Patches

if TYPE_CHECKING:
    from memwatch.record.context import Context
    from memwatch.record.tables.storages import Storages


class Book(Protocol):
    """What torch writes down of one kind of memory.

    Attributes:
        functions: methods that are called in place of torch's.
    """

    functions: tuple[Any, ...]

    def open(self, patches: Patches) -> bool:
        """Begin to read if torch has it by now; return whether it has."""


class Books:
    """Note the roles of what torch keeps in C++ or frees by resizing, from the functions of torch that make it.

    A function that is called only where such memory is made or let go is replaced while the block is open. So a
    program that uses none of them pays nothing.
    """

    def __init__(self, storages: Storages, context: Context) -> None:
        self._context = context
        self._patches = Patches()
        self._books: tuple[Book, ...] = (  # the patches refer to them weakly
            ReducerBook(storages, context),
            ParameterGroupBook(storages, context),
            FlatParameterBook(context),
            AutocastBook(storages, context),
            SelectiveBook(storages, context),
        )
        self._waiting: tuple[Book, ...] = self._books
        for book in self._books:
            for function in book.functions:  # they may run where dynamo evaluates frames
                leave_alone(function.__code__)

    def start(self) -> None:
        """Begin to read; FSDP2 may be imported later, so the context calls `look` before a forward."""
        self._context.before_forward = self.look
        self.look()

    def look(self) -> None:
        """Read the books that are there by now."""
        self._waiting = tuple(book for book in self._waiting if not book.open(self._patches))
        if not self._waiting:
            self._context.before_forward = None

    def stop(self) -> None:
        """Leave torch as it was before `start`."""
        self._context.before_forward = None
        self._patches.take_off()
