"""The parts that tables of a recording are made of: rows, the op counter, numbered texts and stacks, noted deaths."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from memwatch._torch.autograd import ENGINE_CODE
from memwatch._torch.modules import MODULE_CALL_CODE, OPTIMIZER_STEP_CODE
from memwatch.capture.schema import NONE
from memwatch.own_code import CodeOwner, hands_on, line_at, owner_of_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

    from typing_extensions import Self


class Table(Protocol):
    """The rows of one table. Python keeps them in a list, C++ in an array."""

    def __iadd__(self, row: tuple[int, ...], /) -> Self:
        """Append one row: its integers, in the order of the table's columns."""

    def take(self) -> Any:
        """Remove and return all present rows, as one flat run of integers."""


class Rows(list[int]):
    """The rows of one table, in a list."""

    def take(self) -> list[int]:
        """Remove and return the present rows. Rows that another thread appends meanwhile stay for the next call."""
        count = len(self)
        taken = self[:count]
        del self[:count]
        return taken


OpCounter: TypeAlias = list[int]
"""A list of one element: the number of ops that have started. It is also the number of the next op.

It is a plain list because it is read several times for every op. Python indexes a list without a call, and C++ reads
the element in place.
"""


def new_op_counter() -> OpCounter:
    """Return the counter of a block before its first op."""
    return [0]


class Strings:
    """Number every distinct text, in order of first sight."""

    __slots__ = ("_first_sight", "_ids", "texts")

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._first_sight = threading.RLock()  # a flush in another thread numbers texts too
        self.texts: list[str] = []

    def __call__(self, text: str) -> int:
        """Return the number of `text`, a new one at first sight."""
        number = self._ids.get(text)
        return self._at_first_sight(text) if number is None else number

    def _at_first_sight(self, text: str) -> int:
        with self._first_sight:
            number = self._ids.get(text)
            if number is None:
                number = self._ids[text] = len(self.texts)
                self.texts += (text,)  # not a call, because a signal handler may raise at any call
            return number


class Deaths(Protocol):
    """Weak references whose callback ran, in the order of the deaths."""

    @property
    def append(self) -> Callable[[Any], None]:
        """Note a death, in whichever thread it happens. This is a C function."""

    def clear(self) -> None:
        """Remove all."""

    def __len__(self) -> int:
        """Count them."""

    def __iter__(self) -> Iterator[Any]:
        """Yield them, oldest death first."""


class Stacks:
    """Number call stacks. This holds code objects, never frames.

    The key of a stack has the addresses of its code objects and the offsets of its instructions. Files, lines and
    functions are read from these later.

    A module call is a boundary. The stack above it is captured once, at the call, and the stack of every op inside
    refers to it by number. So each op only pays for the few frames between itself and its module.

    Attributes:
        enabled: whether stacks are captured at all.
        bounds: addresses of the code objects that a walk stops at.
        engine: address of the code object of torch's frame around a whole backward; 0 if it is not known.
    """

    def __init__(self, strings: Strings, boundary: CodeType, *, enabled: bool) -> None:
        self.enabled = enabled
        # a walk stops at our frame around a module call, at torch's frame just inside it, and at an optimizer's step
        self.bounds = {
            id(code) for code in (boundary, MODULE_CALL_CODE, OPTIMIZER_STEP_CODE) if code is not None
        }
        self.engine = 0 if ENGINE_CODE is None else id(ENGINE_CODE)
        self._strings = strings
        self._ids: dict[tuple[int, ...], int] = {}
        self._keys: list[tuple[int, ...]] = []
        self._codes: dict[int, CodeType] = {}
        self._written = 0
        # (code address, offset) -> file, line, function and owner, as numbers; None for a frame that is left out
        self._frames: dict[tuple[int, int], tuple[int, int, int, int] | None] = {}

    def intern(self, key: tuple[int, ...], frame: Any) -> int:
        """Return the number of a stack, a new one at first sight.

        Args:
            key: the number of the stack above its module call, then code address and offset of each frame.
            frame: the innermost frame of the stack.
        """
        number = self._ids.get(key)
        if number is None:
            for address in key[1::2]:  # keeping the code object alive keeps its address unique
                self._codes[address] = frame.f_code
                frame = frame.f_back
            number = self._ids[key] = len(self._keys)
            self._keys += (key,)  # not `append`, because a signal handler may raise at any call
        return number

    @property
    def codes(self) -> list[CodeType]:
        """The code objects of all frames."""
        return list(self._codes.values())

    def unwritten_rows(self) -> list[int]:
        """Return rows of `stacks` for the stacks that are new since the last call."""
        rows: list[int] = []
        written = self._written
        while written < len(self._keys):
            for depth, (file, line, function, owner) in enumerate(self._expand(written)):
                rows += (written, depth, file, line, function, owner)
            written += 1
        self._written = written  # last: if memory runs out before, the stacks are still new
        return rows

    def _expand(self, number: int) -> list[tuple[int, int, int, int]]:
        frames = []
        while number != NONE:
            key = self._keys[number]
            for address, offset in zip(key[1::2], key[2::2], strict=True):
                frame = self._symbolise(address, offset)
                if frame is not None:
                    frames.append(frame)
            number = key[0]
        return frames

    def _symbolise(self, address: int, offset: int) -> tuple[int, int, int, int] | None:
        if (address, offset) not in self._frames:
            code = self._codes[address]
            owner = owner_of_function(code)
            # such a frame counts as torch's, so that reports show the line of its caller
            if owner.calls_torch and hands_on(code, offset):
                owner = CodeOwner.TORCH
            self._frames[address, offset] = (
                None
                if owner is CodeOwner.MEMWATCH
                else (
                    self._strings(code.co_filename),
                    line_at(code, offset),
                    self._strings(getattr(code, "co_qualname", code.co_name)),
                    int(owner),
                )
            )
        return self._frames[address, offset]
