"""Simulate torch's CUDA caching allocator and its settings, for a torch that is not a CUDA build.

The allocator rounds blocks up to a multiple of 512 B, and cuts them from segments. Blocks of up to 1 MiB come from
segments of 2 MiB, and blocks below 10 MiB from segments of 20 MiB. Larger blocks have segments of their own, in
multiples of 2 MiB. A request gets the smallest free block of its stream that is large enough. The allocator splits the
block if enough is left, and joins free neighbours. If the device is full, it releases free segments and tries again.
`reports/allocator.md` compares the model with torch's own code. `Settings` has the settings of `PYTORCH_ALLOC_CONF`.
"""

from __future__ import annotations

import bisect
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.devices.cuda_allocator.trace import ANY_DEVICE_BYTES, FREE, Outcome, SettingsError
from memwatch.errors import MemwatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from memwatch.devices.cuda_allocator.trace import Trace

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
BLOCK_BYTES: Final = 512
"""Bytes to which requests are rounded up. This value and the next four are constants of torch's allocator."""
_SMALL_BYTES: Final = 1 << 20
"""Largest request, in bytes, that small segments serve."""
_SMALL_SEGMENT: Final = 2 << 20
"""Bytes of a small segment."""
_SHARED_BELOW: Final = 10 << 20
"""Bytes. Smaller requests share a segment; a larger request has a segment of its own."""
_ROUND: Final = 2 << 20
"""Bytes to which segments of their own are rounded up."""


@dataclass(frozen=True)
class Settings:
    """The settings that the model knows.

    Attributes:
        divisions: number of sizes per power of two, from 1 MiB up, to which requests are rounded up.
        most_split_bytes: blocks of this size and larger are not split; None if all blocks may be split.
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
    if value not in {"True", "False"}:
        raise ValueError(value)
    return value == "True"


def _mib(value: str, least: int) -> int:
    number = int(value)
    if number < least:  # torch has the same limit
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


class DeviceFullError(MemwatchError):
    """An allocation does not fit on the device."""


@dataclass(eq=False, slots=True)
class _Block:
    """A stretch of a segment.

    Attributes:
        start, nbytes: its place.
        stream: the stream whose allocations may take it.
        pool: the pool of its segment.
        is_free: whether it is free.
        is_mapped: whether it has memory. Only a block of an expandable segment can lack memory.
        before, after: its neighbours in the segment.
        segment: the first and the last address of an expandable segment; None for others.
        seen: the number of requests to its pool before it became free.
    """

    start: int
    nbytes: int
    stream: int
    pool: _Pool
    is_free: bool = True
    is_mapped: bool = True
    before: _Block | None = None
    after: _Block | None = None
    segment: tuple[int, int] | None = None
    seen: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole segment."""
        return self.before is None and self.after is None


@dataclass(eq=False, slots=True)
class _Pool:
    """The free blocks of small or of large segments.

    Attributes:
        page_bytes: the unit by which an expandable segment grows.
        least_left_bytes: a block is split if at least so much is left.
        most_split_bytes: a request of this size or more takes a whole block. None if every request may split one.
        free: stream, size and address of each free block, in order, with the block.
        unmapped: stream and address of each stretch of an expandable segment without memory, in order, with it.
        requests: number of requests, for garbage collection.
    """

    page_bytes: int
    least_left_bytes: int
    most_split_bytes: int | None
    free: list[tuple[int, int, int, _Block]] = field(default_factory=list)
    unmapped: list[tuple[int, int, _Block]] = field(default_factory=list)
    requests: int = 0

    def put(self, block: _Block) -> None:
        block.seen = self.requests
        bisect.insort(self.free, (block.stream, block.nbytes, block.start, block))

    def take(self, block: _Block) -> None:
        # addresses differ, and the shorter of two equal tuples is the smaller one, so blocks are never compared
        del self.free[bisect.bisect_left(self.free, (block.stream, block.nbytes, block.start))]

    def put_unmapped(self, block: _Block) -> None:
        bisect.insort(self.unmapped, (block.stream, block.start, block))

    def take_unmapped(self, block: _Block) -> None:
        del self.unmapped[bisect.bisect_left(self.unmapped, (block.stream, block.start))]

    def in_order(self) -> list[_Block]:
        """Return the free blocks by stream, size and address."""
        return [block for _, _, _, block in self.free]


class CachingAllocator:
    """The allocator. It has no blocks at first.

    Args:
        settings: its settings.
        device_bytes: the memory of the device.

    Attributes:
        allocated_bytes: bytes of blocks in use.
        reserved_bytes, most_reserved_bytes: bytes of segments, now and at most.
        retries: allocations that the device refused at first.
    """

    def __init__(
        self, settings: Settings = Settings(), device_bytes: int = ANY_DEVICE_BYTES
    ) -> None:  # the default can be shared, because settings are frozen
        self.allocated_bytes = self.reserved_bytes = self.most_reserved_bytes = self.retries = 0
        self._settings, self._device_bytes = settings, device_bytes
        self._allowed_bytes = None if settings.fraction is None else int(settings.fraction * device_bytes)
        self._small = _Pool(_SMALL_SEGMENT, BLOCK_BYTES, None)
        self._large = (
            _Pool(settings.shared_segment_bytes, BLOCK_BYTES, None)
            if settings.is_expandable
            else _Pool(settings.shared_segment_bytes, _SMALL_BYTES + 1, settings.most_split_bytes)
        )
        self._handed_out: dict[int, _Block] = {}
        self._next_address = 0
        self._was_refused = False
        self._collects = self._allowed_bytes is not None and settings.collects_above > 0
        self._sizes: dict[int, int] = {}  # request -> size of its block; a program has few different sizes

    def allocate(self, number: int, nbytes: int, stream: int = 0) -> None:
        """Hand out a block under a number, by which `free` finds it.

        Raises:
            DeviceFullError: the device has no room, even after all free segments were given back.
        """
        if nbytes == 0:
            return
        size = self._sizes.get(nbytes) or self._rounded(nbytes)
        pool = self._small if size <= _SMALL_BYTES else self._large
        block = self._free_block(pool, size, stream)
        if block is None:
            self._was_refused = False
            if self._collects:
                self._collect_garbage()
            block = (
                self._new_block(pool, size, stream)
                or (self._release_available(pool, size, stream) and self._new_block(pool, size, stream))
                or (self._release_all() and self._new_block(pool, size, stream))
                or None
            )
            if block is None:
                raise DeviceFullError(f"{nbytes} bytes do not fit")
            self.retries += self._was_refused
        left = block.nbytes - size
        if left >= pool.least_left_bytes and (pool.most_split_bytes is None or size < pool.most_split_bytes):
            rest = block
            before = rest.before
            block = _Block(rest.start, size, stream, pool, False, True, before, rest, rest.segment)
            if before is not None:
                before.after = block
            rest.before = block
            rest.start += size
            rest.nbytes = left
            pool.put(rest)
        else:
            block.is_free = False
        self._handed_out[number] = block
        self.allocated_bytes += block.nbytes

    def free(self, number: int) -> None:
        """Take a block back; its free neighbours become part of it."""
        block = self._handed_out.pop(number, None)
        if block is None:  # the request was for 0 bytes
            return
        self.allocated_bytes -= block.nbytes
        block.is_free = True
        self._join_neighbours(block)
        block.pool.put(block)

    # sizes

    def _rounded(self, nbytes: int) -> int:
        """Return the size of the block for a request, and note it."""
        step = BLOCK_BYTES
        index = min(max(nbytes.bit_length() - 1 - 20, 0), len(self._settings.divisions) - 1)
        divisions = self._settings.divisions[index]
        if divisions > 1 and nbytes > BLOCK_BYTES * divisions:
            step = (1 << (nbytes.bit_length() - 1)) // divisions
        size = self._sizes[nbytes] = max(-(-nbytes // step) * step, BLOCK_BYTES)
        return size

    def _segment_bytes(self, size: int) -> int:
        """Return the size of a new segment for a block."""
        if size <= _SMALL_BYTES:
            return _SMALL_SEGMENT
        if size < _SHARED_BELOW:
            return self._settings.shared_segment_bytes
        return -(-size // _ROUND) * _ROUND

    # free blocks

    def _free_block(self, pool: _Pool, size: int, stream: int) -> _Block | None:
        """Return the free block that serves a request best, and take it out of its pool."""
        if self._collects:
            pool.requests += 1
        free = pool.free
        place = bisect.bisect_left(free, (stream, size))
        if place == len(free) or free[place][0] != stream:
            return None
        block = free[place][3]
        if block.segment is not None:
            # a block with unmapped memory behind it can grow, so the next block may be the better fit
            while place + 1 < len(free) and free[place + 1][0] == stream:
                other = free[place + 1][3]
                if _size_to_grow_to(other) >= _size_to_grow_to(block):
                    break
                place, block = place + 1, other
        most = self._settings.most_split_bytes
        if most is not None and size < most <= block.nbytes:
            return None
        if most is not None and size >= most and block.nbytes >= size + self._settings.most_rounding_bytes:
            return None
        del free[place]
        return block

    def _join_neighbours(self, block: _Block) -> None:
        pool = block.pool
        before, after = block.before, block.after
        if before is not None and before.is_free and before.is_mapped == block.is_mapped:
            (pool.take if before.is_mapped else pool.take_unmapped)(before)
            block.start, block.nbytes = before.start, before.nbytes + block.nbytes
            block.before = before.before
            if block.before is not None:
                block.before.after = block
        if after is not None and after.is_free and after.is_mapped == block.is_mapped:
            (pool.take if after.is_mapped else pool.take_unmapped)(after)
            block.nbytes += after.nbytes
            block.after = after.after
            if block.after is not None:
                block.after.before = block

    # the device

    def _take_from_device(self, nbytes: int) -> bool:
        if self.reserved_bytes + nbytes > self._device_bytes:
            self._was_refused = True
            return False
        self.reserved_bytes += nbytes
        self.most_reserved_bytes = max(self.most_reserved_bytes, self.reserved_bytes)
        return True

    def _new_addresses(self, nbytes: int) -> int:
        start = self._next_address
        # for a device without memory, segments have 0 bytes, but each needs an address of its own
        self._next_address += max(-(-nbytes // _ROUND), 1) * _ROUND
        return start

    def _new_block(self, pool: _Pool, size: int, stream: int) -> _Block | None:
        """Return a block of new device memory; None if the device is full."""
        nbytes = self._segment_bytes(size)
        if self._allowed_bytes is not None and self.reserved_bytes + nbytes > self._allowed_bytes:
            return None
        if self._settings.refuses_early and self.reserved_bytes + nbytes > self._device_bytes:
            raise DeviceFullError(f"a segment of {nbytes} bytes does not fit")
        if self._settings.is_expandable:
            return self._grown(pool, size, stream)
        if not self._take_from_device(nbytes):
            return None
        return _Block(self._new_addresses(nbytes), nbytes, stream, pool)

    def _release(self, block: _Block) -> None:
        block.pool.take(block)
        self.reserved_bytes -= block.nbytes

    def _release_available(self, pool: _Pool, size: int, stream: int) -> bool:
        """Give back segments that are too large to be split, just enough for a request."""
        most = self._settings.most_split_bytes
        if most is None or self._settings.is_expandable:
            return False
        size = max(size, most)
        place = bisect.bisect_left(pool.free, (stream, size))
        if place < len(pool.free) and pool.free[place][0] == stream:
            self._release(pool.free[place][3])
            return True
        released = 0
        while place > 0 and released < size:
            place -= 1
            of_stream, nbytes, _, block = pool.free[place]
            if nbytes < most or of_stream != stream:
                break
            self._release(block)
            released += nbytes
        return released >= size

    def _release_all(self) -> bool:
        """Give back every segment that is free, and every free page of segments that grow."""
        for pool in (self._large, self._small):
            growing = []
            for block in pool.in_order():
                if block.segment is not None:
                    growing.append(block)
                elif block.is_whole:
                    self._release(block)
            for block in growing:
                self._unmap(block)
        return True

    def _collect_garbage(self) -> None:
        """If more is reserved than the threshold, give back free segments that were not used for long."""
        assert self._allowed_bytes is not None
        target = self.reserved_bytes - int(self._settings.collects_above * self._allowed_bytes)
        if target <= 0:
            return
        pool = self._large
        whole = [block for block in pool.in_order() if block.is_whole and block.segment is None]
        reclaimed, has_released = 0, True
        while reclaimed < target and has_released and whole:
            mean = sum(pool.requests - block.seen for block in whole) / len(whole)
            old = [block for block in whole if pool.requests - block.seen >= mean]
            for block in old:
                reclaimed += block.nbytes
                self._release(block)
            has_released = bool(old)
            whole = [block for block in whole if block not in old]

    # segments that grow

    def _grown(self, pool: _Pool, size: int, stream: int) -> _Block | None:
        """Return the lowest block of a growing segment that is large enough; map the memory that it lacks."""
        block = self._growing(pool, size, stream)
        if not block.is_mapped and not self._map(block, min(block.nbytes, size)):
            return None
        while block.nbytes < size:
            following = block.after
            if following is None:  # the request is larger than a segment can become
                return None
            if not self._map(following, min(size - block.nbytes, following.nbytes)):
                return None
            block = following
        pool.take(block)
        return block

    def _growing(self, pool: _Pool, size: int, stream: int) -> _Block:
        """Return the first of some consecutive free blocks that are large enough together.

        If there are none, return a block at new addresses, without memory.
        """
        place = bisect.bisect_left(pool.unmapped, (stream,))
        for of_stream, _, stretch in pool.unmapped[place:]:
            if of_stream != stream:
                break
            before = stretch.before
            first = before if before is not None and before.is_free else stretch
            total, block = 0, first
            following: _Block | None = first
            while total < size and following is not None and following.is_free:
                block = following
                total += block.nbytes
                following = block.after
            if total >= size:
                return first
        wanted = self._device_bytes + self._device_bytes // 8
        nbytes = -(-wanted // pool.page_bytes) * pool.page_bytes
        start = self._new_addresses(nbytes)
        made = _Block(start, nbytes, stream, pool, is_mapped=False, segment=(start, start + nbytes))
        pool.put_unmapped(made)
        return made

    def _map(self, block: _Block, size: int) -> bool:
        """Give the beginning of a block memory in whole pages, and join it to free neighbours."""
        pool = block.pool
        nbytes = -(-size // pool.page_bytes) * pool.page_bytes
        taken = 0
        for _ in range(nbytes // pool.page_bytes):
            if not self._take_from_device(pool.page_bytes):
                self.reserved_bytes -= taken
                return False
            taken += pool.page_bytes
        pool.take_unmapped(block)
        block.is_mapped = True
        if nbytes < block.nbytes:
            rest = _Block(
                block.start + nbytes,
                block.nbytes - nbytes,
                block.stream,
                pool,
                is_mapped=False,
                segment=block.segment,
                before=block,
                after=block.after,
            )
            if rest.after is not None:
                rest.after.before = rest
            block.after, block.nbytes = rest, nbytes
            pool.put_unmapped(rest)
        self._join_neighbours(block)
        pool.put(block)
        return True

    def _unmap(self, block: _Block) -> None:
        """Give back the whole pages of a free block of a growing segment."""
        pool = block.pool
        assert block.segment is not None
        base, page = block.segment[0], pool.page_bytes
        first = base + -(-(block.start - base) // page) * page
        last = base + (block.start + block.nbytes - base) // page * page
        if first >= last:
            return
        pool.take(block)
        end = block.start + block.nbytes
        if first > block.start:
            head = _Block(block.start, first - block.start, block.stream, pool, segment=block.segment)
            head.before, head.after = block.before, block
            if head.before is not None:
                head.before.after = head
            block.before = head
            pool.put(head)
        if last < end:
            tail = _Block(last, end - last, block.stream, pool, segment=block.segment)
            tail.before, tail.after = block, block.after
            if tail.after is not None:
                tail.after.before = tail
            block.after = tail
            pool.put(tail)
        block.start, block.nbytes, block.is_mapped = first, last - first, False
        self.reserved_bytes -= last - first
        self._join_neighbours(block)
        if not block.is_whole:  # the addresses of a whole segment without memory are given back
            pool.put_unmapped(block)


def _size_to_grow_to(block: _Block) -> int:
    following = block.after
    return block.nbytes + (following.nbytes if following is not None and not following.is_mapped else 0)


class Model:
    """The model, with the interface of torch's own allocator."""

    name: Final = "memwatch's model of torch's allocator"

    def run(self, trace: Trace, settings: str, device_bytes: int) -> Outcome:
        """Return the outcome of a trace in the allocator.

        Raises:
            SettingsError: the model does not know the settings.
        """
        allocator = CachingAllocator(Settings.parse(settings), device_bytes)
        reserved: list[int] = []
        allocated: list[int] = []
        refused = None
        events: Iterable[tuple[int, int, int]] = zip(
            trace.blocks.tolist(), trace.sizes.tolist(), trace.streams.tolist(), strict=True
        )
        for event, (block, nbytes, stream) in enumerate(events):
            if nbytes == FREE:
                allocator.free(block)
            else:
                try:
                    allocator.allocate(block, nbytes, stream)
                except DeviceFullError:
                    refused = event
                    break
            reserved.append(allocator.reserved_bytes)
            allocated.append(allocator.allocated_bytes)
        rest = len(trace) - len(reserved)  # nothing happens after an allocation that does not fit
        return Outcome(
            settings,
            np.array(reserved + [allocator.reserved_bytes] * rest, dtype=np.int64),
            np.array(allocated + [allocator.allocated_bytes] * rest, dtype=np.int64),
            allocator.most_reserved_bytes,
            allocator.retries,
            refused,
        )

    def run_many(
        self, trace: Trace, settings: Sequence[str], device_bytes: int
    ) -> list[Outcome | SettingsError]:
        """Return the outcome of a trace under each of several settings."""
        return [self._run_or_reject(trace, each, device_bytes) for each in settings]

    def _run_or_reject(self, trace: Trace, settings: str, device_bytes: int) -> Outcome | SettingsError:
        try:
            return self.run(trace, settings, device_bytes)
        except SettingsError as error:
            return error
