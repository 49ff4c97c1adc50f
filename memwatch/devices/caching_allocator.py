"""torch's caching allocator of CUDA devices in a few lines: which blocks and segments a row of sizes would take.

It hands out blocks of whole 512 B from segments: small ones from segments of 2 MiB, those below 10 MiB from segments of
20 MiB, larger ones from segments of their own in whole 2 MiB. The smallest free block that is large enough is taken,
and split where enough is left; free neighbours are joined. That is its default; there is one stream.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Final

BLOCK_BYTES: Final = 512
_SMALL_BYTES: Final = 1 << 20
_SMALL_SEGMENT: Final = 2 << 20
_SHARED_BELOW: Final = 10 << 20
_SHARED_SEGMENT: Final = 20 << 20
_ROUND: Final = 2 << 20


@dataclass(eq=False, slots=True)
class _Block:
    start: int
    nbytes: int
    is_small: bool
    is_free: bool = True
    before: _Block | None = None
    after: _Block | None = None

    @property
    def key(self) -> tuple[int, int]:
        """The order in which free blocks are tried."""
        return self.nbytes, self.start


class CachingAllocator:
    """An allocator that has handed out nothing.

    Attributes:
        allocated_bytes, most_allocated_bytes: blocks that are handed out, now and at most.
        reserved_bytes: segments.
    """

    def __init__(self) -> None:
        self.allocated_bytes = self.most_allocated_bytes = self.reserved_bytes = 0
        self._blocks: dict[int, _Block] = {}
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._at: dict[int, _Block] = {}

    def allocate(self, number: int, nbytes: int) -> None:
        """Hand out a block, which is freed by its number."""
        size = max(-(-nbytes // BLOCK_BYTES), 1) * BLOCK_BYTES
        is_small = size <= _SMALL_BYTES
        block = self._best(size, is_small=is_small) or self._new_segment(size, is_small=is_small)
        left = block.nbytes - size
        if left >= BLOCK_BYTES if is_small else left > _SMALL_BYTES:
            rest = _Block(block.start + size, left, is_small, before=block, after=block.after)
            if block.after is not None:
                block.after.before = rest
            block.after = rest
            block.nbytes = size
            self._put(rest)
        block.is_free = False
        self._blocks[number] = block
        self.allocated_bytes += block.nbytes
        self.most_allocated_bytes = max(self.most_allocated_bytes, self.allocated_bytes)

    def free(self, number: int) -> None:
        """Take a block back; its free neighbours become part of it."""
        block = self._blocks.pop(number)
        self.allocated_bytes -= block.nbytes
        block.is_free = True
        if block.before is not None and block.before.is_free:
            block = self._join(self._taken(block.before), block)
        if block.after is not None and block.after.is_free:
            block = self._join(block, self._taken(block.after))
        self._put(block)

    def _best(self, size: int, *, is_small: bool) -> _Block | None:
        free = self._free[is_small]
        position = bisect.bisect_left(free, (size, 0))
        return self._at.pop(free.pop(position)[1]) if position < len(free) else None

    def _new_segment(self, size: int, *, is_small: bool) -> _Block:
        shared = _SHARED_SEGMENT if size < _SHARED_BELOW else -(-size // _ROUND) * _ROUND
        nbytes = _SMALL_SEGMENT if is_small else shared
        start = self.reserved_bytes  # addresses only order blocks of equal size
        self.reserved_bytes += nbytes
        return _Block(start, nbytes, is_small)

    def _put(self, block: _Block) -> None:
        bisect.insort(self._free[block.is_small], block.key)
        self._at[block.start] = block

    def _taken(self, block: _Block) -> _Block:
        free = self._free[block.is_small]
        del free[bisect.bisect_left(free, block.key)]
        return self._at.pop(block.start)

    @staticmethod
    def _join(first: _Block, second: _Block) -> _Block:
        first.nbytes += second.nbytes
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        return first
