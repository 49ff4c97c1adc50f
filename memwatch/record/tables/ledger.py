"""The figures that change with every birth and death, as each backend keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from memwatch.record.tables.storages import Storages
    from memwatch.record.tables.watched import WatchedTensor


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


class Ledger(Protocol):
    """The figures that change with every birth and death; whichever backend writes the births keeps them.

    Attributes:
        count: storages seen so far, which is also the number of the next one.
        hold: whether a new storage is watched by its Python object from birth.
        entry_count: storages with a smaller number were there at entry.
    """

    count: int
    hold: bool
    entry_count: int

    def account(self, device: int, /) -> Account:
        """Return the figures of a device, by the string id of its name."""

    def keep_for(self, storages: Storages) -> None:
        """Keep the figures of this table from now on; called once, when the table is complete."""

    def record_deaths(self, op: int, /) -> None:
        """Append the deaths since the last call; `op` is how many ops have started.

        Each is as of when it came where `Storages.dead` notes that, else as of now.
        """

    def hold_one(self, tensor: Tensor, known: WatchedTensor, /) -> None:
        """Watch the storage of a tensor by its Python object from now on; `known` watched it so far."""

    @property
    def watched_number(self) -> Callable[[Tensor, bool], int]:
        """Return the number of the storage of a tensor, -1 unless it is plain and known.

        Where its second argument is True, a storage of backward whose tensor is gone is watched by its Python object
        from now on.
        """

    def rewatch(self, op: int, /) -> None:
        """Watch by their Python objects the storages that backward made: after it, one more owner does no harm."""
