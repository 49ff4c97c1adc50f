"""The settings of torch's CUDA caching allocator: the text of `PYTORCH_ALLOC_CONF`, parsed for the model."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from memwatch.devices.cuda_allocator.trace import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

MIB: Final = 1 << 20  # bytes
_INTERVALS: Final = 16
"""Powers of two from 1 MiB to 64 GiB, each with a number of divisions of its own."""
_WITHOUT_EFFECT: Final = frozenset(
    {
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "pinned_num_register_threads",
        "pinned_use_background_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_free_catch_all",
        "pinned_max_round_threshold_mb",
        "pinned_max_cached_size_mb",
        "graph_capture_record_stream_reuse",
    }
)
"""Settings that change nothing in the device memory of a trace."""


@dataclass(frozen=True)
class Settings:
    """The settings that the model knows.

    Attributes:
        divisions: number of sizes per power of two, from 1 MiB up, to which requests are rounded up.
        most_split_bytes: blocks of this size and larger are kept whole; None splits all.
        most_rounding_bytes: the largest excess of an unsplit block over the request.
        shared_segment_bytes: size of the segments for blocks of 1 to 10 MiB.
        collects_above: the share of the allowed memory above which old free segments are released; 0 for never.
        fraction: the share of the device that may be reserved; None if no share was set.
        is_expandable: whether segments grow.
        refuses_early: whether a request beyond the free memory of the device fails without a call to the device.
    """

    divisions: tuple[int, ...] = field(default=(0,) * _INTERVALS)
    most_split_bytes: int | None = None
    most_rounding_bytes: int = 20 * MIB
    shared_segment_bytes: int = 20 * MIB
    collects_above: float = 0.0
    fraction: float | None = None
    is_expandable: bool = False
    refuses_early: bool = False

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Return the settings of a text such as `max_split_size_mb:128,expandable_segments:True`.

        Raises:
            SettingsError: the text has a key or a value that the model does not know.
        """
        found: dict[str, Any] = {}
        for key, value in _pairs("".join(text.split())):
            if key in _WITHOUT_EFFECT or (key, value) == ("backend", "native"):
                continue
            if key not in _KEYS:
                raise SettingsError(f"memwatch's model of torch's allocator does not know {key}:{value}")
            name, read = _KEYS[key]
            try:
                found[name] = read(value)
            except (ValueError, IndexError):
                raise SettingsError(f"{value!r} is not a value of {key}") from None
        return cls(**found)


def _pairs(text: str) -> list[tuple[str, str]]:
    """Return the keys and values; a list in brackets is one value."""
    pairs: list[tuple[str, str]] = []
    while text:
        key, colon, rest = text.partition(":")
        if not colon:
            raise SettingsError(f"{text!r} is not a setting; write KEY:VALUE")
        end = rest.find("]") + 1 if rest.startswith("[") else rest.find(",")
        value, text = (rest, "") if end <= 0 else (rest[:end], rest[end:].removeprefix(","))
        pairs.append((key, value))
    return pairs


def _truth(value: str) -> bool:
    return {"True": True, "False": False}[value] if value in {"True", "False"} else _wrong(value)


def _wrong(value: str) -> bool:
    raise ValueError(value)


def _mib(value: str, least: int) -> int:
    number = int(value)
    if number < least:  # as torch has it
        raise ValueError(value)
    return number * MIB


def _ratio(value: str) -> float:
    ratio = float(value)
    if not 0 < ratio <= 1:
        raise ValueError(value)
    return ratio


def _divisions(value: str) -> tuple[int, ...]:
    """Return the divisions of each power of two, of a number or of a list such as `[64:8,256:4,>:1]`."""
    if not value.startswith("["):
        return (_power_of_two(value),) * _INTERVALS
    found = [0] * _INTERVALS
    last = 0
    for place, pair in enumerate(value[1:-1].split(",")):
        size, _, number = pair.partition(":")
        divisions = _power_of_two(number)
        if size == ">":
            found[last:] = [divisions] * (_INTERVALS - last)
            continue
        index = min(_power_of_two(size).bit_length() - 1, _INTERVALS - 1)
        if place == 0:
            found[:index] = [divisions] * index
        found[index] = divisions
        last = index + 1
    return tuple(found)


def _power_of_two(value: str) -> int:
    number = int(value)
    if number < 1 or number & (number - 1):
        raise ValueError(value)
    return number


_KEYS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "roundup_power2_divisions": ("divisions", _divisions),
    "max_split_size_mb": ("most_split_bytes", functools.partial(_mib, least=20)),
    "max_non_split_rounding_mb": ("most_rounding_bytes", functools.partial(_mib, least=20)),
    "large_segment_size_mb": ("shared_segment_bytes", functools.partial(_mib, least=11)),
    "garbage_collection_threshold": ("collects_above", _ratio),
    "per_process_memory_fraction": ("fraction", _ratio),
    "expandable_segments": ("is_expandable", _truth),
    "throw_on_cudamalloc_oom": ("refuses_early", _truth),
}
"""Each key of `PYTORCH_ALLOC_CONF`, with its attribute of `Settings` and its parser. Sizes are in MiB."""
