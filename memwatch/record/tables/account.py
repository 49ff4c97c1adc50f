"""The figures of one device, which change with every birth and death, as each backend keeps them."""

from __future__ import annotations

from typing import Protocol


class Account(Protocol):
    """The figures of one device.

    Attributes:
        live_bytes: what is alive there now.
        entry_gone_bytes: what has died of the storages that were there at entry.
        handed_on_bytes: what a backward that runs made and is alive, though the tensor that it was watched by is gone,
            as that of a gradient. It counts for the limit, and is known to the native recorder alone.
        watch_bytes: a birth that lifts `live_bytes` above this calls `Storages.above_watched`; the first birth does.
        limit_bytes: one that lifts `live_bytes` and `handed_on_bytes` above this does too.
        quiet_bytes: one with which no more are live, with what has died of that at entry, is not told for a while.
        quiet_until_ticks: when that ends.
    """

    live_bytes: int
    entry_gone_bytes: int
    watch_bytes: int
    limit_bytes: int
    quiet_bytes: int
    quiet_until_ticks: int

    def is_quiet(self, workspace_bytes: int, at_ticks: int, /) -> bool:
        """Return True where a birth need not be told, as its op needed so much more than is live after it."""

    @property
    def handed_on_bytes(self) -> int:
        """What a backward that runs made; see above."""
