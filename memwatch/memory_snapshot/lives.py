"""Lives: which allocation each entry of the history begins or ends, and which were there before it.

A life counts from `alloc` to `free_requested`, as `memory_allocated()` counts it. Until `free_completed`
another stream may still use the block; that is kept in the history. The history may begin late, for it can be a ring
buffer: what is freed in it and allocated nowhere was alive when it began, and so was what lies in a block of the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from memwatch.capture.schema import NONE, ORIGINS

if TYPE_CHECKING:
    from memwatch.memory_snapshot.rows import Rows

_BEFORE, _IN_HISTORY = ORIGINS.index("baseline"), ORIGINS.index("unobserved")
ALLOC: Final = "alloc"
FREE_REQUESTED: Final = "free_requested"
FREE_COMPLETED: Final = "free_completed"


@dataclass
class Lives:
    """The allocations of one device, as rows of `births` and `deaths`.

    Attributes:
        device: string id of the device.
        start_ns: when the history begins.
        requests: whether the history has requests to free; if it has none, a completed free ends a life.
        before_count: how many allocations were freed in the history whose beginning is not in it.
        before_bytes: their bytes.
    """

    rows: Rows
    device: int
    start_ns: int
    requests: bool
    before_count: int = 0
    before_bytes: int = 0
    _alive: dict[int, int] = field(default_factory=dict)
    _waiting: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)

    def follow(self, action: str, address: int, nbytes: int, time_ns: int) -> int:
        """Record what an entry begins or ends; return its storage, -1 for none."""
        if action == ALLOC:
            missed = self._alive.pop(address, NONE)
            if missed != NONE:  # its free is not in the history: it came just before, at the latest
                self._end(missed, time_ns - 1)
            self._waiting.pop(address, None)
            return self._begin(address, nbytes, time_ns, _IN_HISTORY)
        if action == FREE_REQUESTED:
            storage = self._waiting[address] = self._freed(address, nbytes, time_ns)
            return storage
        if action == FREE_COMPLETED:
            waiting = self._waiting.pop(address, NONE)
            if waiting != NONE or (self.requests and address not in self._alive):
                return waiting
            return self._freed(address, nbytes, time_ns)
        return NONE

    def in_block(self, address: int, nbytes: int) -> int:
        """Return the storage that lies in an allocated block at the end."""
        storage = self._alive.pop(address, NONE)
        return self._begin(address, nbytes, self.start_ns, _BEFORE) if storage == NONE else storage

    def waiting_in(self, address: int) -> int:
        """Return the storage that was in a block which another stream still uses, -1 if it ended before."""
        return self._waiting.get(address, NONE)

    @property
    def unheard(self) -> list[int]:
        """The storages that no entry ends and that lie in no block at the end; ask when all blocks are known."""
        return list(self._alive.values())

    def _begin(self, address: int, nbytes: int, time_ns: int, origin: int) -> int:
        storage = self.rows.next_storage()
        self.rows.add("births", storage, NONE, time_ns, address, nbytes, self.device, origin, NONE)
        self.sizes[storage] = nbytes
        if origin == _IN_HISTORY:
            self._alive[address] = storage
        return storage

    def _freed(self, address: int, nbytes: int, time_ns: int) -> int:
        storage = self._alive.pop(address, NONE)
        if storage == NONE:
            storage = self._begin(address, nbytes, self.start_ns, _BEFORE)
            self.before_count += 1
            self.before_bytes += nbytes
        self._end(storage, time_ns)
        return storage

    def _end(self, storage: int, time_ns: int) -> None:
        self.rows.add("deaths", storage, 0, time_ns)
