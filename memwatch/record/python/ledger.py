"""Keep the figures of the storages in Python, and append the rows of their deaths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memwatch._torch.tensors import address_of_storage_of as address_of
from memwatch.capture.schema import NONE
from memwatch.record.clock import ticks
from memwatch.record.tables.parts import address_or_zero, known_bytes
from memwatch.record.tables.storages import WatchedStorage, WatchedTensor, is_gone
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from memwatch.record.tables.storages import Storages


class PythonAccount:
    """The figures of one device; see `memwatch.record.tables.storages.Account`."""

    __slots__ = (
        "entry_gone_bytes", "handed_on_bytes", "limit_bytes", "live_bytes", "quiet_bytes", "quiet_until_ticks",
        "watch_bytes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.live_bytes = self.entry_gone_bytes = self.handed_on_bytes = self.limit_bytes = 0
        self.watch_bytes = self.quiet_bytes = -1
        self.quiet_until_ticks = 0

    def is_quiet(self, workspace_bytes: int, at_ticks: int) -> bool:
        """Return True if the sampler need not be called for a birth, because the live bytes are low."""
        is_low = self.live_bytes + self.entry_gone_bytes + workspace_bytes <= self.quiet_bytes
        return is_low and at_ticks < self.quiet_until_ticks and self.live_bytes <= self.limit_bytes


class PythonLedger:
    """Keep the figures of a table of storages; see `memwatch.record.tables.storages.Ledger`.

    Attributes:
        on_release: called with each weak reference in `Storages.dead` that does not watch a storage, the number of ops
            that have started, and the time in ticks. Packs of saved tensors share the queue.
    """

    __slots__ = (
        "_accounts",
        "_rewatched_count",
        "_storages",
        "_writing",
        "count",
        "entry_count",
        "hold",
        "on_release",
    )

    def __init__(self) -> None:
        self.count = self.entry_count = 0
        self._accounts: dict[int, PythonAccount] = {}
        self.hold = True
        self._rewatched_count = 0
        self.on_release: Callable[[Any, int, int], None] = lambda release, op, at_ticks: None
        self._writing = False

    def keep_for(self, storages: Storages) -> None:
        """Keep the figures of this table from now on."""
        self._storages = storages

    def account(self, device: int) -> PythonAccount:
        """Return the figures of a device, by the string id of its name."""
        found = self._accounts.get(device)
        if found is None:
            found = self._accounts[device] = PythonAccount()
        return found

    def record_deaths(self, op: int) -> None:
        """Append the deaths since the last call, with the present time."""
        if self._writing:  # another thread is doing it, for example an autograd thread
            return
        self._writing = True
        try:
            self._record_deaths(ticks(), op)
        finally:
            self._writing = False

    def _record_deaths(self, at_ticks: int, op: int) -> None:
        storages = self._storages
        dead: Any = storages.dead  # a deque: deaths in other threads are written at the next op
        live, roles, accounts = storages.live, storages.roles, self._accounts
        while dead:  # each is removed after it is written, with no call in between
            gone = dead[0]
            kind = gone.__class__
            if kind is WatchedStorage:
                key = gone.key
                # not a call: during a call another storage may get the address
                if key in live and live[key] is gone:
                    del live[key]
                account = accounts[gone.device]
                account.live_bytes -= gone.nbytes
                if gone.number < self.entry_count:
                    account.entry_gone_bytes += gone.nbytes
                    account.watch_bytes -= gone.nbytes
                storages.deaths += (gone.number, op, at_ticks)
                if gone.number in roles:
                    del roles[gone.number]
            elif kind is WatchedTensor:  # the entry stays, because another tensor may still use the storage
                accounts[gone.device].live_bytes -= gone.nbytes
            else:
                self.on_release(gone, op, at_ticks)
            del dead[0]

    def hold_one(self, tensor: Tensor, known: WatchedTensor) -> None:
        """Watch the storage of a tensor through its own Python object from now on. `known` watched it so far."""
        storages, storage = self._storages, tensor.untyped_storage()
        nbytes = known_bytes(storage.nbytes()) if storages.estimate or address_or_zero(tensor) else 0
        watched = WatchedStorage(storage, storages.dead.append)
        watched.number, watched.key, watched.nbytes = known.number, known.key, nbytes
        watched.device = known.device
        storages.live[known.key] = watched
        self._accounts[known.device].live_bytes += nbytes

    def watched_number(self, tensor: Tensor, watch_on: bool) -> int:
        """Return the number of a tensor's storage. -1 unless the tensor is plain and the storage known.

        Args:
            tensor: the tensor.
            watch_on: whether to watch a storage made by backward through its own Python object if its tensor is gone.
        """
        try:
            known = self._storages.live.get(address_of(tensor))
        except (RuntimeError, NotImplementedError) as error:
            pass_on(error)
            return NONE
        if known is None or is_gone(known):
            return NONE
        if known.__class__ is WatchedTensor:
            if known.address != address_or_zero(tensor):
                return NONE
            if watch_on and known() is None:
                self.hold_one(tensor, known)
        return known.number

    def rewatch(self, op: int) -> None:
        """Watch the storages that backward made through their Python objects, and forget those without a tensor."""
        storages = self._storages
        self.record_deaths(op)
        self.hold = True
        since, self._rewatched_count = self._rewatched_count, self.count
        live = storages.live
        for known in storages.newest(since):
            if known.__class__ is WatchedTensor:
                key, tensor = known.key, known()
                if tensor is None:
                    if key in live and live[key] is known:
                        del live[key]
                    storages.roles.pop(known.number, None)
                else:
                    self._accounts[known.device].live_bytes -= known.nbytes
                    self.hold_one(tensor, known)
