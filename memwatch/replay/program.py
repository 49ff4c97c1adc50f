"""Read a capture made with `replay=True` as a program: a list of calls that use buffers, with decoded arguments.

A buffer is a storage between two changes of its size. An op that changes the size, through `resize_` or `out=`, makes a
new buffer. Ops that only make a view are left out, and so is `set_`: they neither allocate nor write memory, and return
no numbers. A replay rebuilds each tensor from its window: its data type, shape, stride and offset.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from memwatch.capture.schema import NONE, OPERANDS
from memwatch.encoding import FAKE, META, ONLY_ALLOCATE, Unsupported, Value, Window, decode, leaves
from memwatch.errors import MemwatchError, UnsupportedOpError
from memwatch.own_code import CodeOwner
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memwatch.capture import Capture


_BATCH_NORMS = frozenset(
    f"aten.{name}.default" for name in ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
)
READ, WRITTEN, RESULT = (OPERANDS.index(name) for name in ("read", "written", "result"))
_ONLY_MOVES = "aten.set_."
"""Prefix of the op that gives a tensor another storage. A replay leaves it out, and rebuilds tensors from windows."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A storage between two changes of its size.

    Attributes:
        storage: number of the storage in the capture.
        nbytes: its size (bytes).
        device: device, such as `cpu` or `cuda:0`.
        dtype: element type of the first tensor seen on it, such as `float32`.
        maker: index of the call that made it, -1 for an input.
        pinned: whether it is a result: an op made or wrote it, and its storage is alive at the end.
    """

    storage: int
    nbytes: int
    device: str
    dtype: str
    maker: int
    pinned: bool


@dataclass(frozen=True, slots=True)
class Call:
    """One op of the program.

    Attributes:
        op: number of the op in the capture.
        name: overload, such as `aten.mm.default`.
        line: `file:line` of the program's own code.
        positional: arguments. A tensor is a window, and its slot is an index into `buffers`.
        keyword: keyword arguments, in the same form.
        result: results in the same form; numbers are the values that the op returned.
        buffers: the buffer of each tensor, arguments first, then results.
        reads: buffers that the op reads, without duplicates.
        writes: buffers that it writes.
        makes: buffers that it allocates.
        resized: buffers whose size the op changed. It makes a new buffer for each of them.
        grad: whether grad mode was on. If it is, some kernels save more for the backward.
    """

    op: int
    name: str
    line: str
    positional: list[Value]
    keyword: dict[str, Value]
    result: Value
    buffers: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    makes: tuple[int, ...]
    resized: tuple[int, ...]
    grad: bool

    @property
    def writes_once(self) -> tuple[int, ...]:
        """Buffers that only the first computation writes: the running statistics of a batch norm in training.

        The other results of the op do not depend on them, and torch accepts None in their place.
        """
        if self.name not in _BATCH_NORMS:
            return ()
        training = self.positional[5] if len(self.positional) > 5 else self.keyword.get("training")
        return self.writes if training else ()

    @property
    def where(self) -> str:
        """The op and its line, for messages."""
        return f"op {self.op} ({self.name}, {self.line})" if self.line else f"op {self.op} ({self.name})"

    @property
    def returns_number(self) -> bool:
        """Whether the op returns a plain value to Python, as `item` does."""
        return any(
            not isinstance(item, (Window, Unsupported)) and item is not None for item in leaves(self.result)
        )


@dataclass(frozen=True)
class Program:
    """The program that a plan is made for and a replay executes."""

    calls: list[Call]
    buffers: list[Buffer]
    deaths: dict[int, int] = field(default_factory=dict)
    """Buffer -> index of the call after which the program freed it."""
    windows: dict[int, set[Window]] = field(default_factory=dict)
    """Buffer -> windows of its tensors. Only the bytes in these windows are compared, because kernels may leave other
    bytes unset. If `empty` allocated the buffer, only windows that an op wrote count."""


def read_program(capture: Capture) -> Program:
    """Return the program of a capture.

    Raises:
        MemwatchError: the capture was made without `replay=True`.
        UnsupportedOpError: the recording is not enough to call an op again, compiled code ran, or the tensors were
            fake.
    """
    if capture.meta.get("estimate"):
        raise UnsupportedOpError(
            "the block was entered under a FakeTensorMode, so its tensors hold no values to compute with; "
            "record it without that mode"
        )
    for note in capture.notes:
        if note.kind == "compiled":
            raise UnsupportedOpError(
                f"{note.text}; a replay needs every op, so record with torch.compiler.set_stance('force_eager')"
            )
    if not capture.rows("arguments"):
        raise MemwatchError(
            "the capture lacks the arguments of ops, which a plan needs; record the program again with "
            "`memwatch run --replay`, "
            "or the block with memwatch.profile(replay=True)"
        )
    return _Reader(capture).read()


class _Reader:
    """Read the calls in turn, and track the current buffer of each storage."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        births = capture.tables["births"]
        self._device = dict(zip(births["storage"].tolist(), capture.text(births["device"]), strict=True))
        shapes = (text.partition("[")[0] for text in capture.text(births["shape"]))
        self._dtype = dict(zip(births["storage"].tolist(), shapes, strict=True))
        dead = capture.tables["deaths"]["storage"].tolist()
        self._alive = self._device.keys() - set(dead)
        self._lines = op_lines(capture)
        self._names = _by_op(capture, "ops", "name")
        self._current: dict[int, int] = {}
        self._calls: list[Call] = []
        self._buffers: list[Buffer] = []
        self._calls_without_memory = 0
        self._windows: dict[int, set[Window]] = {}
        self._blank: set[int] = set()  # buffers that an op such as `empty` only allocated

    def read(self) -> Program:
        table = self._capture.tables["arguments"]
        texts = self._capture.text(table["call"]), self._capture.text(table["result"])
        operands = _grouped(self._capture)
        for op, call, result, grad in zip(table["op"].tolist(), *texts, table["grad"].tolist(), strict=True):
            self._read_call(op, call, result, operands.get(op, []), grad=bool(grad))
        if self._calls_without_memory and not self._calls:
            raise UnsupportedOpError(
                "every recorded op used fake or meta tensors, which hold no values to replay; record real tensors"
            )
        return Program(self._calls, self._with_pins(), self._deaths(), self._windows)

    def _read_call(
        self, op: int, call: str, result: str, operands: list[tuple[int, int, int]], *, grad: bool
    ) -> None:
        name, line = self._names[op], self._lines.get(op, "")
        if name.startswith(_ONLY_MOVES):
            return
        positional, names, values = decode(call)
        num_arguments = sum(isinstance(item, Window) for item in leaves([positional, values]))
        results = decode(result, num_arguments)
        index = len(self._calls)
        buffers: list[int] = []
        reads: dict[int, None] = {}
        writes: dict[int, None] = {}
        makes: dict[int, None] = {}
        resized: list[int] = []
        for storage, access, nbytes in operands[:num_arguments]:
            buffer = self._argument(storage, nbytes, op, name, line)
            buffers.append(buffer)
            (writes if access == WRITTEN else reads)[buffer] = None
        for storage, _, nbytes in operands[num_arguments:]:
            known = self._current.get(storage)
            if known is None or self._buffers[known].nbytes != nbytes:
                if known is not None:  # the op only reads the old buffer, and writes the new one
                    resized.append(known)
                    writes.pop(known, None)
                    reads[known] = None
                known = self._new(storage, nbytes, index)
                makes[known] = None
            elif known not in buffers and self._buffers[known].maker != index:
                reads[known] = None  # the result is on memory that is not among the arguments
            buffers.append(known)
        made = Call(
            op,
            name,
            line,
            positional,
            dict(zip(names, values, strict=True)),
            results,
            tuple(buffers),
            tuple(reads),
            tuple(writes),
            tuple(makes),
            tuple(resized),
            grad,
        )
        self._note_windows(made)
        if _has_no_memory(made):
            self._calls_without_memory += 1
            return
        _refuse_unsupported(made)
        # leave out views, but keep ops of other libraries, which may do anything
        if makes or writes or made.returns_number or not name.startswith("aten."):
            self._calls.append(made)

    def _note_windows(self, call: Call) -> None:
        """Note which parts of each buffer hold defined bytes."""
        if call.name.split(".")[1] in ONLY_ALLOCATE:
            self._blank.update(call.makes)
        for item in leaves([call.positional, list(call.keyword.values()), call.result]):
            buffer = call.buffers[item.slot] if isinstance(item, Window) else NONE
            if buffer != NONE and (buffer not in self._blank or buffer in call.writes):
                window = dataclasses.replace(item, slot=0, flags="")
                self._windows.setdefault(buffer, set()).add(window)

    def _argument(self, storage: int, nbytes: int, op: int, name: str, line: str) -> int:
        """Return the current buffer of an argument. A storage that no op made is an input of the program."""
        known = self._current.get(storage)
        if known is None:
            return self._new(storage, nbytes, NONE)
        if self._buffers[known].nbytes != nbytes:
            raise UnsupportedOpError(
                f"the storage that op {op} ({name}, {line}) uses was resized outside an op before it "
                f"({self._buffers[known].nbytes} to {nbytes} bytes); such programs cannot be replayed"
            )
        return known

    def _new(self, storage: int, nbytes: int, maker: int) -> int:
        self._current[storage] = len(self._buffers)
        device = self._device.get(storage, "cpu")
        dtype = self._dtype.get(storage, "uint8")
        self._buffers.append(Buffer(storage, nbytes, device, dtype, maker, pinned=False))
        return len(self._buffers) - 1

    def _with_pins(self) -> list[Buffer]:
        """Return the buffers, with `pinned` set."""
        written = {buffer for call in self._calls for buffer in call.writes}
        last = set(self._current.values())
        return [
            dataclasses.replace(item, pinned=True)
            if number in last and item.storage in self._alive and (item.maker != NONE or number in written)
            else item
            for number, item in enumerate(self._buffers)
        ]

    def _deaths(self) -> dict[int, int]:
        """Return the buffers that were freed inside the block -> the last call that had started before the free."""
        deaths = self._capture.tables["deaths"]
        ops = np.array([call.op for call in self._calls], dtype=np.int64)
        position = np.searchsorted(ops, deaths["op"]) - 1
        found = {}
        for storage, call in zip(deaths["storage"].tolist(), position.tolist(), strict=True):
            buffer = self._current.get(storage)
            if buffer is not None and self._buffers[buffer].maker != NONE and call >= 0:
                found[buffer] = call
        return found


def _has_no_memory(call: Call) -> bool:
    """Return True if all tensors of a call are fake or meta tensors, for example because a compiler traces the call."""
    arguments = list(leaves([call.positional, list(call.keyword.values()), call.result]))
    kinds = {item.what for item in arguments if isinstance(item, Unsupported)}
    return bool(kinds) and kinds <= {FAKE, META} and not any(isinstance(item, Window) for item in arguments)


def _refuse_unsupported(call: Call) -> None:
    """Raise for an argument or a result that cannot be recorded as a window or a number."""
    for item in leaves([call.positional, list(call.keyword.values()), call.result]):
        if isinstance(item, Unsupported):
            raise UnsupportedOpError(
                f"{call.where} uses a {item.what}, which cannot be replayed; "
                "keep it out of the block, or use what is inside it"
            )


def op_lines(capture: Capture) -> dict[int, str]:
    """Return `file:line` of the innermost frame of the program's own code for every op."""
    stacks = capture.tables["stacks"]
    # the rows of a stack begin with the innermost frame; in reverse order, this frame is written last and stays
    own = np.flatnonzero(stacks["owner"] <= CodeOwner.INSTALLED)[::-1]
    files = capture.text(stacks["file"][own])
    place = {
        stack: f"{file}:{line}"
        for stack, file, line in zip(
            stacks["stack"][own].tolist(), files, stacks["line"][own].tolist(), strict=True
        )
    }
    ops = capture.tables["ops"]
    return {
        op: place.get(stack, "") for op, stack in zip(ops["op"].tolist(), ops["stack"].tolist(), strict=True)
    }


def _by_op(capture: Capture, table: str, column: str) -> dict[int, str]:
    rows = capture.tables[table]
    return dict(zip(rows["op"].tolist(), capture.text(rows[column]), strict=True))


def _grouped(capture: Capture) -> dict[int, list[tuple[int, int, int]]]:
    rows = capture.tables["operands"]
    grouped: dict[int, list[tuple[int, int, int]]] = {}
    columns = (rows[name].tolist() for name in ("op", "storage", "access", "nbytes"))
    for op, storage, access, nbytes in zip(*columns, strict=True):
        grouped.setdefault(op, []).append((storage, access, nbytes))
    return grouped


def pinned(program: Program) -> Iterator[int]:
    """Return the buffers that must hold their final bytes at the end."""
    return (number for number, buffer in enumerate(program.buffers) if buffer.pinned)


def overload_of(call: Call) -> Any:  # torch has no public type for an overload
    """Return the overload that a recorded call called.

    Raises:
        UnsupportedOpError: the op is not defined in this process.
    """
    found = overload_named(call.name)
    if found is None:
        raise UnsupportedOpError(
            f"{call.where} is not defined in this process; import the library that defines it"
        )
    return found


def overload_named(name: str) -> Any:  # torch has no public type for an overload
    """Return the overload of a recorded name, or None if this process lacks it."""
    try:
        return _overload(name)
    except (AttributeError, RuntimeError) as error:
        pass_on(error)
        return None


@functools.cache  # it keeps no errors, so an op is found once the program has imported its library
def _overload(name: str) -> Any:
    space, opname, overload = name.rsplit(".", 2)
    return getattr(getattr(getattr(torch.ops, space), opname), overload)
