"""The storages that were there before a block: one of them that dies in it may only have been replaced.

All blocks of a process share one book. The first block looks at the whole heap; the next ones look at what was made
since the last block, which gc keeps among its young objects unless it has collected those meanwhile.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Final

from memwatch.leaks.new_storages import NewStorages, storages_behind, tensors_among

if TYPE_CHECKING:
    from memwatch.leaks.new_storages import NewStorage

_BEFORE: Final = -1
"""The run of what was there before all runs."""
_HAS_THREE_GENERATIONS: Final = sys.version_info < (3, 14)


class _Book:
    """What is known of the storages of this process, and when gc had collected how often."""

    def __init__(self) -> None:
        self.storages = NewStorages()
        self.collections: tuple[int, int] | None = None
        self.blocks = 0  # that are open


_BOOK: Final = _Book()


def open_block() -> tuple[dict[int, NewStorage], dict[int, int]]:
    """Return the storages that are alive, by `id`, and the bytes of those that changed their size; a block begins."""
    _BOOK.blocks += 1
    _list_what_was_made()
    changed = {}
    for key, made in _BOOK.storages.by_id.items():
        now_bytes = made.bytes_now()
        if now_bytes != made.nbytes:
            if _BOOK.blocks == 1:
                made.nbytes = now_bytes
            else:  # the block around this one compares with the bytes that it began with
                changed[key] = now_bytes
    return dict(_BOOK.storages.by_id), changed


def close_block() -> None:
    """End a block."""
    _BOOK.blocks -= 1


def _list_what_was_made() -> None:
    """List the storages that were made since the last time."""
    _BOOK.storages.alive()
    collections = gc.get_stats()[1]["collections"], gc.get_stats()[2]["collections"]
    if collections == _BOOK.collections and _HAS_THREE_GENERATIONS and not gc.get_freeze_count():
        fresh = gc.get_objects(0) + gc.get_objects(1)  # a list that is built of both would list itself
    else:
        fresh = gc.get_objects()
    for storage in storages_behind(tensors_among(fresh)):
        _BOOK.storages.add(storage, _BEFORE)
    _BOOK.collections = collections
