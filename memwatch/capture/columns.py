"""Store the recorded tables of a capture as columns: compressed into chunks, and decoded when a reader needs them.

A chunk has some rows of one integer column in few bytes. Neighbouring values are close to each other: numbers count
up, times increase, and there are few different ids. So a chunk stores either the differences of neighbours or the
offsets from the smallest value. It takes the kind that needs fewer bytes per value, in the narrowest unsigned integers.
In a file the chunk is also deflated. For this, all lowest bytes of the values are put together, then all second bytes,
and so on.

A reader of five million ops needs only a few columns. `ChunkedTable` therefore decodes a column on first use and then
drops its chunks. The schema decides the width of the decoded integers: row numbers are small, times and bytes are not.
"""

from __future__ import annotations

import struct
import weakref
import zlib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memwatch.capture.schema import RECORDED, RECORDED_BY_NAME
from memwatch.errors import DamagedCaptureError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memwatch.capture.schema import Column, Table

IntArray = NDArray[np.signedinteger[Any]]
"""Signed integers, mostly of 64 bits; narrower in columns with many small values."""
Columns = Mapping[str, IntArray]
"""The columns of a table by name. Columns of a file have the narrowest integers that can hold their values."""
MOST_ROWS: Final = 1 << 20
"""Rows of the largest chunk. A chunk of equal values has a few bytes, however many rows a file claims. A guess."""
# whether deflated, whether differences, bytes of a value; first value, base
_HEAD: Final = struct.Struct("<??Bxqq")
_WIDTHS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_LEVEL: Final = 1  # the fastest level: a higher level saves little
_NARROW: Final = (np.int8, np.int32)
_READ_ONCE: Final = ("allocator", "births", "deaths")
"""Tables that are needed only until they are joined to others. Their columns are freed after their last use."""
INTEGER_TABLES = tuple(
    table.name for table in RECORDED if all(column.kind == "int" for column in table.columns)
)
NOT_RECORDED: Final = "not_recorded"
"""The key of `meta` with the data that the source of a capture lacks: `ops`, `uses`, `times`, ..."""


def as_rows(flat: Sequence[int] | IntArray, width: int) -> IntArray:
    """Return a flat list of integers, row after row, as an int64 array of shape (n, width)."""
    return np.asarray(flat, dtype=np.int64).reshape(-1, width)


class Chunk(NamedTuple):
    """Rows of one column.

    Attributes:
        rows: number of rows.
        low: the smallest value.
        high: the largest value.
        data: the values, as `encode` writes them.
    """

    rows: int
    low: int
    high: int
    data: bytes


def encoded(rows: IntArray) -> list[Chunk]:
    """Return the columns of rows, at least one, as chunks in little memory.

    All columns are processed in one call. A flush has a dozen columns of a few hundred rows, and a numpy call takes
    longer than its work on one of them.
    """
    columns = np.ascontiguousarray(rows.T)
    spans = _spans(columns)
    wide = [number for number, (low, high) in enumerate(spans) if _width(high - low) > 1]
    steps: dict[int, tuple[IntArray, tuple[int, int]]] = {}
    if wide:
        # a difference may overflow, and the sum then overflows back
        differences = np.diff(columns[wide], axis=1)
        steps = dict(zip(wide, zip(differences, _spans(differences), strict=True), strict=True))
    return [
        _chunk(values, span, steps.get(number))
        for number, (values, span) in enumerate(zip(columns, spans, strict=True))
    ]


def _spans(columns: IntArray) -> list[tuple[int, int]]:
    """Return the smallest and the largest value of each column."""
    return list(zip(columns.min(axis=1).tolist(), columns.max(axis=1).tolist(), strict=True))


def _chunk(values: IntArray, span: tuple[int, int], steps: tuple[IntArray, tuple[int, int]] | None) -> Chunk:
    """Return a column as a chunk.

    Args:
        values: the column.
        span: its smallest and its largest value.
        steps: its differences with their span, if they may be narrower.
    """
    low, high = span
    width, is_difference, first, base, rest = _width(high - low), False, low, low, values
    if steps is not None:
        differences, (smallest, largest) = steps
        width_of_steps = _width(largest - smallest)
        if width_of_steps < width:
            width, is_difference, first = width_of_steps, True, int(values[0])
            base, rest = smallest, differences
    head = _HEAD.pack(False, is_difference, width, first, base)
    if not width:
        return Chunk(len(values), low, high, head)
    return Chunk(len(values), low, high, head + (rest - base).astype(_WIDTHS[width]).tobytes())


def deflated(chunk: Chunk) -> Chunk:
    """Return a chunk in its form for a file."""
    is_deflated, is_difference, width, first, base = _HEAD.unpack_from(chunk.data)
    if is_deflated or not width:
        return chunk
    body = np.frombuffer(chunk.data, dtype=np.uint8, offset=_HEAD.size).reshape(-1, width)
    head = _HEAD.pack(True, is_difference, width, first, base)
    return chunk._replace(data=head + zlib.compress(body.T.tobytes(), _LEVEL))


def decode(chunk: Chunk, into: NDArray[Any]) -> None:
    """Write the values of a chunk into an array of its length, of integers that are wide enough.

    Raises:
        DamagedCaptureError: the chunk is damaged.
    """
    try:
        is_deflated, is_difference, width, first, base = _HEAD.unpack_from(chunk.data)
        rest = _rest(chunk, chunk.rows - is_difference, width, is_deflated=is_deflated)
    except (struct.error, zlib.error, KeyError, ValueError) as error:
        raise DamagedCaptureError("its bytes are damaged; record it again") from error
    if not width and not is_difference and base == chunk.low == chunk.high:
        into.fill(base)  # half of all columns are constant in a chunk
        return
    if is_difference:
        values = np.empty(chunk.rows, dtype=np.int64)
        values[0], values[1:] = first, rest
        values[1:] += base
        np.cumsum(values, out=values)
    else:
        values = rest.astype(np.int64)
        values += base
    if int(values.min()) != chunk.low or int(values.max()) != chunk.high:
        raise DamagedCaptureError("its bytes are damaged (values are not what they were); record it again")
    into[:] = values


def _rest(chunk: Chunk, count: int, width: int, *, is_deflated: bool) -> NDArray[Any]:
    """Return the offsets or differences of a chunk."""
    if not width:
        return np.zeros(count, dtype=np.uint8)
    body = chunk.data[_HEAD.size :]
    if not is_deflated:
        return np.frombuffer(body, dtype=_WIDTHS[width], count=count)
    unpacked = zlib.decompressobj().decompress(body, count * width)
    planes = np.frombuffer(unpacked, dtype=np.uint8, count=count * width).reshape(width, count)
    return np.ascontiguousarray(planes.T).view(_WIDTHS[width]).ravel()


def _width(span: int) -> int:
    """Return the bytes of the integers from 0 to `span`."""
    if not span:
        return 0
    return next(width for width in _WIDTHS if span >> (8 * width) == 0)


class ChunkedTable(Mapping[str, "IntArray"]):
    """An append-only table of integer columns in little memory. It is read as a mapping from names to arrays."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._chunks: dict[str, list[Chunk]] = {column.name: [] for column in table.columns}
        self._bounds: dict[str, tuple[int, int]] = {}
        self._is_read_once = table.name in _READ_ONCE
        self._decoded: MutableMapping[str, IntArray] = (
            weakref.WeakValueDictionary() if self._is_read_once else {}
        )
        self.rows = 0

    def append(self, rows: IntArray) -> None:
        """Append rows, an int64 array of shape (n, width)."""
        if len(rows):
            self.append_chunks(encoded(rows))

    def append_chunks(self, chunks: Sequence[Chunk]) -> None:
        """Append rows as chunks. Each column has one chunk, in the order of the columns."""
        for name, chunk in zip(self._table.names, chunks, strict=True):
            low, high = self._bounds.get(name, (chunk.low, chunk.high))
            self._bounds[name] = min(low, chunk.low), max(high, chunk.high)
            self._chunks[name].append(chunk)
        self.rows += chunks[0].rows

    def joined(self, rest: ChunkedTable) -> ChunkedTable:
        """Return a table of these rows and the rest. No column of either has been decoded yet."""
        other = ChunkedTable(self._table)
        for chunks in (*self.chunks(), *rest.chunks()):
            other.append_chunks(chunks)
        return other

    def chunks(self) -> list[tuple[Chunk, ...]]:
        """Return the chunks: for each appended run of rows, one chunk per column."""
        return list(zip(*self._chunks.values(), strict=True))

    def bounds(self, name: str) -> tuple[int, int]:
        """Return the smallest and the largest value of a column, or zeros for a table without rows."""
        return self._bounds.get(name, (0, 0))

    def __getitem__(self, name: str) -> IntArray:
        values = self._decoded.get(name)
        if values is None:
            values = self._decoded[name] = self._decode(name)
        return values

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the columns, in order."""
        return iter(self._chunks)

    def __len__(self) -> int:
        """Count the columns."""
        return len(self._chunks)

    def _decode(self, name: str) -> IntArray:
        column = next(column for column in self._table.columns if column.name == name)
        values: NDArray[Any] = np.empty(self.rows, dtype=_dtype(column, self.bounds(name)))
        start = 0
        for chunk in self._chunks[name]:
            decode(chunk, values[start : start + chunk.rows])
            start += chunk.rows
        if not self._is_read_once:
            self._chunks[name] = []
        return values


class Mapped(Mapping[str, "IntArray"]):
    """A table in which one column is computed from the recorded column, on first use.

    Args:
        table: the recorded table.
        name: the column.
        change: returns the new values for the recorded values.
    """

    def __init__(
        self, table: Mapping[str, IntArray], name: str, change: Callable[[IntArray], IntArray]
    ) -> None:
        self._table = table
        self._name = name
        self._change = change
        self._values: list[IntArray] = []

    def __getitem__(self, name: str) -> IntArray:
        if name != self._name:
            return self._table[name]
        if not self._values:
            self._values.append(self._change(self._table[name]))
        return self._values[0]

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the columns, in order."""
        return iter(self._table)

    def __len__(self) -> int:
        """Count the columns."""
        return len(self._table)


def _dtype(column: Column, bounds: tuple[int, int]) -> type[np.signedinteger[Any]]:
    """Return the type of a column's integers. Row numbers and choices may be narrow, because nobody adds them up."""
    if column.refers is None:
        return np.int64
    for dtype in _NARROW if column.refers.choices else _NARROW[1:]:
        if np.iinfo(dtype).min <= bounds[0] and bounds[1] <= np.iinfo(dtype).max:
            return dtype
    return np.int64


@dataclass(frozen=True)
class Note:
    """A limit of the recording: the first op that it concerns, its kind, and a sentence."""

    op: int
    kind: str
    text: str


@dataclass(frozen=True)
class Capture:
    """Recorded tables: `tables[name][column]` is an array of integers; text is interned in `strings`."""

    tables: dict[str, Columns]
    strings: list[str]
    meta: dict[str, Any]
    notes: list[Note] = field(default_factory=list)

    @classmethod
    def from_columns(
        cls, columns: dict[str, list[IntArray]], strings: list[str], meta: dict[str, Any], notes: list[Note]
    ) -> Capture:
        """Build a capture from the columns of each integer table, in schema order; missing tables are empty."""
        tables: dict[str, Columns] = {}
        for name in INTEGER_TABLES:
            names = RECORDED_BY_NAME[name].names
            values = columns.get(name) or [np.empty(0, dtype=np.int64)] * len(names)
            tables[name] = dict(zip(names, values, strict=True))
        return cls(tables, strings, meta, notes)

    def rows(self, name: str) -> int:
        """Count the rows of a table."""
        table = self.tables[name]
        return table.rows if isinstance(table, ChunkedTable) else len(next(iter(table.values())))

    def is_zero(self, name: str, column: str) -> bool:
        """Return whether a column is 0 in all rows. This does not decode chunks."""
        table = self.tables[name]
        if isinstance(table, ChunkedTable):
            return table.bounds(column) == (0, 0)
        return not table[column].any()

    def lacks(self, what: str) -> bool:
        """Return True for data that the source cannot have, such as `ops` in an imported memory snapshot."""
        return what in self.meta.get(NOT_RECORDED, ())

    def text(self, ids: IntArray) -> list[str]:
        """Return the texts of string ids. -1 is empty text."""
        strings = self.strings
        return [strings[number] if 0 <= number < len(strings) else "" for number in ids.tolist()]


def empty_tables() -> dict[str, ChunkedTable]:
    """Return the integer tables, each without rows."""
    return {name: ChunkedTable(RECORDED_BY_NAME[name]) for name in INTEGER_TABLES}
