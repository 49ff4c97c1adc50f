"""What was recorded where, as a file says it: an entry whose value cannot be is left out.

Each entry is JSON of its own, so another writer or a bad disk may leave any value in any of them. Readers take one that
is missing for not known, as in a capture that is imported; one of the wrong kind would end them in a traceback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST: Final = 1 << 62
_LATEST_S: Final = 253_402_300_799
"""The end of the year 9999: later times have no date."""
_PAIR: Final = 2


def agreeing(meta: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entries whose values can be, and the others; names that are not known are kept."""
    wrong = {name: value for name, value in meta.items() if not _KINDS.get(name, _is_any)(value)}
    return {name: value for name, value in meta.items() if name not in wrong}, wrong


def _is_any(value: Any) -> bool:
    return True


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < _LATEST_S


def _are_texts(value: Any) -> bool:
    return type(value) is list and all(map(_is_text, value))


def _are_bytes(value: Any) -> bool:
    return type(value) is dict and all(map(_is_whole, value.values()))


def _are_extents(value: Any) -> bool:
    return type(value) is dict and all(
        type(extents) is list
        and all(type(each) is list and len(each) == _PAIR and all(map(_is_whole, each)) for each in extents)
        for extents in value.values()
    )


_NAMES_BY_KIND: Final[dict[Callable[[Any], bool], tuple[str, ...]]] = {
    _is_flag: ("complete", "estimate", "stacks", "holders", "allocator"),
    _is_text: (
        "memwatch", "torch", "python", "platform", "host", "intercept", "recorder", "process_group", "device",
    ),
    _is_whole: (
        "pid", "parent_pid", "rank", "world_size", "local_rank", "of_rank", "restart", "start_ns", "end_ns", "threads",
        "threads_before", "threads_at_work_before", "threads_unheard", "holder_samples", "holder_samples_cut",
        "holder_samples_ns",
    ),
    _is_time: ("started_s",),
    _are_texts: ("argv", "not_recorded"),
    _are_bytes: ("entry_allocated_bytes", "entry_reserved_bytes", "rounding_bytes", "reserved_bytes"),
    _are_extents: ("segments",),
}  # fmt: skip
_KINDS: Final = {name: kind for kind, names in _NAMES_BY_KIND.items() for name in names}
