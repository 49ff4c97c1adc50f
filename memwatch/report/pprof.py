"""Write a reading as a profile of pprof: the heap at the peak and all allocations, by call stack.

The format is a gzipped message of https://github.com/google/pprof/blob/main/proto/profile.proto. Each sample has four
values with the names of Go's heap profiles, so pprof and the dashboards that read such profiles know them. This file
writes the few field types of the format itself: the protobuf library would be one more dependency, and it needs a
compiled schema.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Final

import pandas as pd

from memwatch.analysis.facts.places import Call
from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memwatch.analysis.reading import DeviceReading

SAMPLE_TYPES: Final = (
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
)
"""What each sample counts: all allocations of the block, and the memory that is alive at the peak."""
DEFAULT_TYPE: Final = "inuse_space"

_AT_ENTRY: Final = Call("", 0, "[alive at entry]", False)
_NO_CALL: Final = Call("", 0, "[no call stack]", False)
"""Frames of memory whose call memwatch did not record; a sample without a frame is dropped by readers."""


def pprof(reading: DeviceReading) -> bytes:
    """Return a reading as the bytes of a profile, compressed. The samples have the category as a label."""
    message = _Profile()
    for name, unit in SAMPLE_TYPES:
        message.add_sample_type(name, unit)
    samples = _samples(reading)
    for (stack, is_at_entry, category), values in zip(
        samples.index.tolist(), samples.to_numpy().tolist(), strict=True
    ):
        frames = _frames(reading, stack) if stack != NONE else [_AT_ENTRY if is_at_entry else _NO_CALL]
        message.add_sample(frames, values, category)
    start_ns, end_ns = (int(reading.meta.get(name) or 0) for name in ("start_ns", "end_ns"))
    message.set_times(start_ns, max(end_ns - start_ns, 0))
    return gzip.compress(message.to_bytes(DEFAULT_TYPE), mtime=0)


def _samples(reading: DeviceReading) -> pd.DataFrame:
    """Return the values of `SAMPLE_TYPES` for each combination of call stack, whether alive at entry, and category."""
    made = reading.part("storages", ["counted", "stack", "birth_event", "category", "nbytes"], coded=True)
    at_entry = made["birth_event"] < 0
    allocated = made["counted"] & ~at_entry
    in_use_bytes = reading.at_peak["nbytes"].reindex(made.index, fill_value=0)
    is_at_peak = made.index.isin(reading.at_peak.index)
    columns = (
        allocated.astype("int64"),
        made["nbytes"] * allocated,
        is_at_peak.astype("int64"),
        in_use_bytes,
    )
    names = (name for name, _ in SAMPLE_TYPES)
    values = pd.DataFrame(dict(zip(names, columns, strict=True)), index=made.index)[allocated | is_at_peak]
    sums: pd.DataFrame = values.groupby(
        [made["stack"], at_entry.rename("at_entry"), made["category"]], observed=True
    ).sum()
    return sums


def _frames(reading: DeviceReading, stack: int) -> list[Call]:
    return list(reading.stack(stack)) or [_NO_CALL]


class _Profile:
    """A message `Profile` under construction. Tables number their rows from 1; the string 0 is empty."""

    def __init__(self) -> None:
        self._fields = bytearray()
        self._strings: dict[str, int] = {"": 0}
        self._functions: dict[tuple[str, str], int] = {}
        self._locations: dict[tuple[str, int, str], int] = {}

    def add_sample_type(self, name: str, unit: str) -> None:
        """Add a value that each sample has."""
        self._fields += _message(1, _number(1, self._string(name)), _number(2, self._string(unit)))

    def add_sample(self, frames: Iterable[Call], values: Sequence[int], category: str) -> None:
        """Add a sample; its frames are given innermost first."""
        label = _message(3, _number(1, self._string("category")), _number(2, self._string(category)))
        locations = _packed(1, [self._location(file, line, name) for file, line, name, _ in frames])
        self._fields += _message(2, locations, _packed(2, values), label)

    def set_times(self, start_ns: int, duration_ns: int) -> None:
        """Set when the recording began, in unix time, and how long it took."""
        self._fields += _number(9, start_ns) + _number(10, duration_ns)

    def to_bytes(self, default_type: str) -> bytes:
        """Return the whole message."""
        self._fields += _number(14, self._string(default_type))
        texts = b"".join(_text(6, text) for text in self._strings)
        return bytes(self._fields) + texts

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _function(self, file: str, name: str) -> int:
        number = self._functions.get((file, name))
        if number is None:
            number = self._functions[file, name] = len(self._functions) + 1
            named, filed = self._string(name), self._string(file)
            self._fields += _message(
                5, _number(1, number), _number(2, named), _number(3, named), _number(4, filed)
            )
        return number

    def _location(self, file: str, line: int, name: str) -> int:
        number = self._locations.get((file, line, name))
        if number is None:
            function = self._function(file, name)
            number = self._locations[file, line, name] = len(self._locations) + 1
            self._fields += _message(
                4, _number(1, number), _message(4, _number(1, function), _number(2, line))
            )
        return number


def _varint(value: int) -> bytes:
    """Return a whole number of 0 or more in groups of seven bits, the lowest first."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _number(field: int, value: int) -> bytes:
    """Return a field of a number; 0 is the default and is left out."""
    return _varint(field << 3) + _varint(value) if value else b""


def _delimited(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _message(field: int, *parts: bytes) -> bytes:
    return _delimited(field, b"".join(parts))


def _packed(field: int, values: Iterable[int]) -> bytes:
    return _delimited(field, b"".join(map(_varint, values)))


def _text(field: int, text: str) -> bytes:
    """Return a field of text; what cannot be encoded, as in names of files, is written as escapes."""
    return _delimited(field, text.encode("utf-8", "backslashreplace"))
