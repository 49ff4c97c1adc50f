"""A chunk: some rows of one integer column as few bytes, so that a recording is small in memory and on disk.

The integers of a column lie close together: numbers count up, times follow each other, ids are few. So a chunk holds
the differences of neighbours, or the offsets from the smallest value, whichever are narrower, in the narrowest
unsigned integers that hold them. In a file it is deflated too, with equal bytes of all values next to each other.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from memwatch.capture.errors import DamagedCaptureError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.capture.packed import IntArray

MOST_ROWS: Final = 1 << 20
"""Rows of the largest chunk: a chunk of equal values is a few bytes, whatever the number of its rows."""

# whether deflated, whether differences, bytes of a value; first value, base
_HEAD: Final = struct.Struct("<??Bxqq")
_WIDTHS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_LEVEL: Final = 1  # the fastest: what a finer search would save is little


class Chunk(NamedTuple):
    """Rows of one column.

    Attributes:
        rows: how many.
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

    All columns are looked at in one go: a flush has some dozen columns of a few hundred rows, of which a call of numpy
    takes longer than its work.
    """
    columns = np.ascontiguousarray(rows.T)
    spans = _spans(columns)
    wide = [number for number, (low, high) in enumerate(spans) if _width(high - low) > 1]
    steps: dict[int, tuple[IntArray, tuple[int, int]]] = {}
    if wide:
        differences = np.diff(columns[wide], axis=1)  # wraps around where it must, and so does the sum
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
        steps: its differences with their span, where they may be narrower.
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
    """Return a chunk as a file holds it."""
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
        raise DamagedCaptureError(f"its bytes are damaged ({error}); record it again") from error
    if not width and not is_difference and base == chunk.low == chunk.high:
        into.fill(base)  # as half of all columns are within a chunk
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
