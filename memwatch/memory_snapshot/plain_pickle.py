"""Read a pickle that holds plain data: lists, tuples, dicts, numbers, text and bytes.

Loading a pickle is dangerous: Python's unpickler imports and calls whatever the file names. This reader stops at any
opcode for names, calls, classes, persistent ids or extensions. Before it uses a length from the file, it compares the
length with the bytes that are left. Its memo is a dictionary, because Python's memo is a list that grows to the largest
number in the file. It hashes only text, because hashing deeply nested tuples crashes the process.
"""

from __future__ import annotations

import pickle
import pickletools
import struct
from typing import TYPE_CHECKING, Any, Final

from memwatch.memory_snapshot.fields import SnapshotError

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_CONTAINERS: Final = 1 << 24
"""A file with more containers is refused, because containers need the most memory per byte of the file. A guess."""
_MOST_INTEGER_BYTES: Final = 16
"""A file with a longer integer is refused. Addresses and sizes have eight bytes and a sign."""
_STOP: Final = pickle.STOP[0]
_BINGET: Final = pickle.BINGET[0]
_NAMES: Final = {opcode.code: opcode.name for opcode in pickletools.opcodes}


def read_plain_pickle(data: bytes) -> Any:
    """Return the value in a pickle of protocol 2 or later that holds plain data.

    Args:
        data: the content of the file.

    Raises:
        SnapshotError: it holds anything else, or is damaged.
    """
    reader = _Reader(data)
    try:
        return reader.run()
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise SnapshotError(
            "it is no memory snapshot of torch, or it is damaged "
            f"(byte {reader.at} of {len(data)}, {type(error).__name__}). "
            "torch's function `_dump_snapshot` writes one"
        ) from error


class _Reader:
    """The state of one reading: a stack of values, the stacks below each mark, and the memo."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.containers = 0

    def run(self) -> Any:
        data, handlers, memo = self.data, _HANDLERS, self.memo
        while True:
            code = data[self.at]
            self.at += 1
            if (
                code == _BINGET
            ):  # handled first, because every third opcode of a snapshot is the key of an entry
                self.stack.append(memo[data[self.at]])
                self.at += 1
                continue
            if code == _STOP:
                (value,) = self.stack
                return value
            handler = handlers.get(code)
            if handler is None:
                raise SnapshotError(_refusal(code, self.at - 1))
            handler(self)

    def take(self, count: int) -> bytes:
        """Return the next bytes of the file."""
        end = self.at + count
        if end > len(self.data):
            raise ValueError("the file ends too early")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def number(self, layout: struct.Struct) -> Any:
        """Return the next number of the file."""
        (value,) = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return value

    def count_container(self) -> None:
        """Refuse the file if it has too many containers."""
        self.containers += 1
        if self.containers > MOST_CONTAINERS:
            raise SnapshotError(
                f"it holds more than {MOST_CONTAINERS:,} lists and dicts; record less with "
                "_record_memory_history(max_entries=...)"
            )

    def push_container(self, value: Any) -> None:
        """Put a container on the stack."""
        self.count_container()
        self.stack.append(value)

    def mark(self) -> None:
        """Begin a new stack above the current one."""
        self.count_container()
        self.below.append(self.stack)
        self.stack = []

    def above_mark(self) -> list[Any]:
        """Return the values above the last mark, and go back to the stack below it."""
        items, self.stack = self.stack, self.below.pop()
        return items

    def integer(self, nbytes: int) -> None:
        if nbytes > _MOST_INTEGER_BYTES:
            raise ValueError("an integer is too long")
        self.stack.append(int.from_bytes(self.take(nbytes), "little", signed=True))

    def text(self, nbytes: int) -> None:
        self.stack.append(self.take(nbytes).decode("utf-8", "surrogatepass"))

    def append(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise TypeError("only a list grows")
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target, keys = self.stack[-1], items[::2]
        if type(target) is not dict or len(items) % 2 or set(map(type, keys)) - {str}:
            raise TypeError("only a dict takes pairs, and its keys are text")
        target.update(zip(keys, items[1::2], strict=True))

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError("the stack is too short")
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.push_container(items)

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items([key, value])

    def memoise(self, number: int) -> None:
        self.memo[number] = self.stack[-1]

    def protocol(self) -> None:
        if self.take(1)[0] > pickle.HIGHEST_PROTOCOL:
            raise ValueError("the protocol is not known")


def _refusal(code: int, at: int) -> str:
    name = _NAMES.get(chr(code))
    if name is None:
        return f"it is not a pickle (byte {at})"
    return f"it holds more than plain data (pickle opcode {name} at byte {at}); none of it was run"


_U1, _U2, _U4, _U8 = (struct.Struct(f"<{letter}") for letter in "BHIQ")
_I4 = struct.Struct("<i")
_F8 = struct.Struct(">d")

_HANDLERS: Final[dict[int, Callable[[_Reader], None]]] = {
    opcode[0]: handler
    for opcode, handler in (
        (pickle.PROTO, _Reader.protocol),
        # the number is the length of the frame, which this reader does not need
        (pickle.FRAME, lambda reader: reader.number(_U8)),
        (pickle.MARK, _Reader.mark),
        (pickle.NONE, lambda reader: reader.stack.append(None)),
        (pickle.NEWTRUE, lambda reader: reader.stack.append(True)),
        (pickle.NEWFALSE, lambda reader: reader.stack.append(False)),
        (pickle.BININT, lambda reader: reader.stack.append(reader.number(_I4))),
        (pickle.BININT1, lambda reader: reader.stack.append(reader.number(_U1))),
        (pickle.BININT2, lambda reader: reader.stack.append(reader.number(_U2))),
        (pickle.LONG1, lambda reader: reader.integer(reader.number(_U1))),
        (pickle.LONG4, lambda reader: reader.integer(reader.number(_U4))),
        (pickle.BINFLOAT, lambda reader: reader.stack.append(reader.number(_F8))),
        (pickle.SHORT_BINUNICODE, lambda reader: reader.text(reader.number(_U1))),
        (pickle.BINUNICODE, lambda reader: reader.text(reader.number(_U4))),
        (pickle.BINUNICODE8, lambda reader: reader.text(reader.number(_U8))),
        (pickle.SHORT_BINBYTES, lambda reader: reader.stack.append(reader.take(reader.number(_U1)))),
        (pickle.BINBYTES, lambda reader: reader.stack.append(reader.take(reader.number(_U4)))),
        (pickle.BINBYTES8, lambda reader: reader.stack.append(reader.take(reader.number(_U8)))),
        (pickle.EMPTY_LIST, lambda reader: reader.push_container([])),
        (pickle.APPEND, lambda reader: reader.append([reader.stack.pop()])),
        (pickle.APPENDS, lambda reader: reader.append(reader.above_mark())),
        (pickle.EMPTY_TUPLE, lambda reader: reader.push_container(())),
        (pickle.TUPLE, lambda reader: reader.push_container(tuple(reader.above_mark()))),
        (pickle.TUPLE1, lambda reader: reader.tuple_of(1)),
        (pickle.TUPLE2, lambda reader: reader.tuple_of(2)),
        (pickle.TUPLE3, lambda reader: reader.tuple_of(3)),
        (pickle.EMPTY_DICT, lambda reader: reader.push_container({})),
        (pickle.SETITEM, _Reader.set_item),
        (pickle.SETITEMS, lambda reader: reader.set_items(reader.above_mark())),
        (pickle.BINPUT, lambda reader: reader.memoise(reader.number(_U1))),
        (pickle.LONG_BINPUT, lambda reader: reader.memoise(reader.number(_U4))),
        (pickle.MEMOIZE, lambda reader: reader.memoise(len(reader.memo))),
        (pickle.LONG_BINGET, lambda reader: reader.stack.append(reader.memo[reader.number(_U4)])),
    )
}
"""The opcodes of plain data. All others are refused, so a file cannot make this reader import or call anything."""
