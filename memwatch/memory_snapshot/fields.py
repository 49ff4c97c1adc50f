"""Read single fields of the dictionaries in a memory snapshot, and the times of its entries.

The functions raise `SnapshotError` for a field whose type or size torch never writes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from memwatch.errors import MemwatchError
from memwatch.text import read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memwatch.capture.columns import IntArray


class SnapshotError(MemwatchError):
    """The file is not a memory snapshot, or it contains more than plain data."""


TIME: Final = "time_us"
NS_PER_US: Final = 1000
GAP_NS: Final = 2
"""Nanoseconds: the least time between two entries. It leaves room for a free that is not in the history."""
LATEST_US: Final = 1 << 52
"""Microseconds, in the year 2112. Later times are replaced by this, so that all times in nanoseconds fit 64 bits."""


class Times(NamedTuple):
    """The time of every entry of every device, in nanoseconds.

    Attributes:
        of_device: per device, the time of each entry. No two entries of a snapshot have the same time, and the entries
            of a device keep their order.
        are_known: whether every entry has a time. If not, the times are only positions: of the entries of the first
            device, then of the second, and so on.
        start_ns: a moment just before the first entry.
        end_ns: the time of the last entry.
    """

    of_device: list[IntArray]
    are_known: bool
    start_ns: int
    end_ns: int


def times_of(traces: list[list[dict[str, Any]]]) -> Times:
    """Return the times of all entries, given the history of each device."""
    are_known = any(traces) and all(TIME in entry for trace in traces for entry in trace)
    counts = [len(trace) for trace in traces]
    if not are_known:
        ends = np.cumsum(counts)
        of_device = [
            GAP_NS * np.arange(end - count + 1, end + 1) for end, count in zip(ends, counts, strict=True)
        ]
        return Times(of_device, are_known=False, start_ns=0, end_ns=GAP_NS * sum(counts))
    written = [_in_order(trace) for trace in traces]
    every = np.concatenate(written)
    order = np.argsort(every, kind="stable")
    positions = GAP_NS * np.arange(len(every))
    unique = np.empty_like(every)
    unique[order] = np.maximum.accumulate(every[order] * NS_PER_US - positions) + positions
    of_device = np.split(unique, np.cumsum(counts)[:-1])
    return Times(of_device, are_known=True, start_ns=int(unique.min()) - GAP_NS, end_ns=int(unique.max()))


def _in_order(trace: list[dict[str, Any]]) -> IntArray:
    """Return the times of a device's entries in microseconds. If a clock went back, repeat the latest time."""
    times = np.array([min(integer(entry, TIME), LATEST_US) for entry in trace], dtype=np.int64)
    return np.maximum.accumulate(times) if len(times) else times


MOST: Final = (1 << 62) - 1
"""The largest accepted integer. A sum of two such integers fits the 64 bits of a capture's columns."""
DEVICE_NAMES: Final = "memwatch_device_names"
"""A key that only memwatch writes: a list of the names of the devices, in the order of their numbers. torch writes only
the numbers, and whoever reads its snapshot has to give the type of the devices."""
HOST_SEGMENTS: Final = "host_segments"
HOST_TRACES: Final = "host_traces"
"""Keys with the pinned memory of the host, as `_record_memory_history(record_pinned_host_memory=True)` records it."""
PINNED_FORM: Final = "pinned_form"
"""A key of a capture's meta data, so that the snapshot can be written again: which of the two keys above it had, and
whether its traces of pinned memory were one list or a list of lists."""
_LONGEST_SEQUENCE: Final = 16  # items; a guess
_LONGEST_TEXT: Final = 4096  # characters; a guess
_as_json: Final = json.JSONEncoder(sort_keys=True).encode
_PLAIN: Final = (int, float, type(None))


def integer(
    entry: Mapping[str, Any], key: str, *, least: int = 0, most: int = MOST, otherwise: int | None = None
) -> int:
    """Return an integer field.

    Args:
        entry: the dict.
        key: the name of the field.
        least: the smallest accepted value.
        most: the largest accepted value.
        otherwise: the value for a field that is missing or None. Without it, such a dict raises an error.
    """
    value = entry.get(key)
    if value is None and otherwise is not None:
        return otherwise
    if not isinstance(value, int):
        raise SnapshotError(f"its field {key!r} is {_shown(value)}, not an integer")
    if not least <= value <= most:
        raise SnapshotError(f"its field {key!r} is {value}, not an integer from {least} to {most}")
    return int(value)


def text(entry: Mapping[str, Any], key: str) -> str:
    """Return a text field; empty text if it is missing."""
    value = entry.get(key, "")
    if not isinstance(value, str):
        raise SnapshotError(f"its field {key!r} is {_shown(value)}, not text")
    return value


def dicts(value: object, what: str) -> Iterator[dict[str, Any]]:
    """Yield the dicts in a list.

    Args:
        value: the list.
        what: a plural noun for its items, for the error.
    """
    for entry in _list(value, what):
        if not isinstance(entry, dict):
            raise SnapshotError(f"one of its {what} is {_shown(entry)}, not a dict")
        yield entry


def lists(value: object, what: str, *, most: int) -> list[Sequence[Any]]:
    """Return the lists in a list.

    Args:
        value: the list.
        what: a plural noun for its items, for the error.
        most: a longer list raises an error.
    """
    found = _list(value, what)
    if len(found) > most:
        raise SnapshotError(f"it has {len(found):,} {what}; memwatch reads at most {most:,}")
    return [_list(each, what) for each in found]


def _list(value: object, what: str) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        raise SnapshotError(f"its {what} are {_shown(value)}, not a list")
    return value


def plain(entry: Mapping[str, Any], known: Iterable[str], left_out: set[str]) -> str:
    """Return the fields of a dict that have no column, as JSON; empty text if there are none.

    Only texts, numbers, None, and short lists and tuples of these are kept.

    Args:
        entry: the dict.
        known: the fields that have a column of their own.
        left_out: gets the names of the fields that are not kept.
    """
    kept = {}
    for key in entry.keys() - known:
        if _is_plain(entry[key]):
            kept[key] = entry[key]
        else:
            left_out.add(key)
    return _as_json(kept) if kept else ""


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return len(value) <= _LONGEST_SEQUENCE and all(_is_short(each) for each in value)
    return _is_short(value)


def _is_short(value: object) -> bool:
    # in a pickle, every entry can refer to the same long text, so a small file could fill the memory
    return len(value) <= _LONGEST_TEXT if isinstance(value, str) else isinstance(value, _PLAIN)


def from_plain(written: str) -> dict[str, Any]:
    """Return the fields that `plain` wrote. Lists become tuples again, because torch's ids of pools are tuples."""
    fields = read_json(written) if written else {}
    if not isinstance(fields, dict):
        raise SnapshotError(
            "the capture is damaged: the fields of an entry are not a JSON object; import the snapshot again"
        )
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}


def _shown(value: object) -> str:
    return "missing" if value is None else f"of type {type(value).__name__}"
