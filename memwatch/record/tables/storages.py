"""Record the identity, birth and death of storages through weak references only.

The address of the C++ storage identifies it while it lives. Its Python object lives exactly as long, because torch
keeps it. So a weak reference to the Python object reports the death, in whichever thread drops the last reference.

But the Python object counts as an owner of the storage, and autograd adds a gradient in place only to a storage with
one owner. So a new storage gets no Python object while backward runs (`Ledger.hold` is off). The first tensor seen on
it is watched until backward has ended, and the allocator's events show when the memory was freed.

`Account` has the figures of one device. They change with each birth and death.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch import Tensor

from memwatch._torch.tensors import TENSOR_DICT, data_address_of, device_of, untyped_storage_of
from memwatch._torch.tensors import address_of as storage_address
from memwatch._torch.tensors import address_of_storage_of as address_of
from memwatch.capture.rows import ResizesRow
from memwatch.capture.schema import NONE, ORIGINS
from memwatch.device_names import CPU, META
from memwatch.errors import MemoryLimitError
from memwatch.heap.tensors import answers_by_code, is_on_cpu, is_on_meta, is_simulated, shape_of
from memwatch.patches import Patches
from memwatch.record.clock import ticks
from memwatch.record.tables.parts import address_or_zero, kind_without_storage, known_bytes, tensor_bytes
from memwatch.record.tables.rows import Rows
from memwatch.signal_handlers import pass_on
from memwatch.sizes import format_bytes

__all__ = [
    "BASELINE",
    "BY_OP",
    "NEVER",
    "Ledger",
    "PatchedResize",
    "Storages",
    "Watched",
    "WatchedStorage",
    "WatchedTensor",
    "address_of",
    "is_gone",
]

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.record.tables.rows import Deaths, OpCounter, Strings, Table


class Watched(weakref.ref[Any]):
    """A weak reference to an object that dies with a storage.

    Attributes:
        number: the storage's number.
        key: the address of its C++ object, which identifies it while it lives.
        nbytes: its share of the live bytes of its device.
        device: string id of that device.
    """

    __slots__ = ("device", "key", "nbytes", "number")
    number: int
    device: int
    key: int
    nbytes: int


class WatchedStorage(Watched):
    """A weak reference to the Python object of a storage, which torch keeps for as long as the storage lives."""

    __slots__ = ()


class WatchedTensor(Watched):
    """A weak reference to the first tensor seen on a storage that has no Python object yet.

    Attributes:
        address: where the tensor's memory begins.
    """

    __slots__ = ("address",)
    address: int


def is_gone(known: Watched) -> bool:
    """Return True for a storage that died but whose death is not written yet. Its address may be in use again."""
    return known.__class__ is WatchedStorage and known() is None


class Account(Protocol):
    """The figures of one device.

    Attributes:
        live_bytes: bytes that are alive on it now.
        entry_gone_bytes: bytes that were alive at entry and have been freed since.
        handed_on_bytes: bytes that the running backward made and that are alive although the watched tensor is gone.
            Gradients are an example. They count for the limit. Only the native recorder knows them.
        watch_bytes: a birth calls `Storages.above_watched` if it lifts `live_bytes` above this. The first birth always
            does.
        limit_bytes: a birth also calls it if `live_bytes` and `handed_on_bytes` together exceed this.
        quiet_bytes: a birth does not call the sampler while `live_bytes` and `entry_gone_bytes` together stay below
            this.
        quiet_until_ticks: when this quiet time ends.
    """

    live_bytes: int
    entry_gone_bytes: int
    watch_bytes: int
    limit_bytes: int
    quiet_bytes: int
    quiet_until_ticks: int

    def is_quiet(self, workspace_bytes: int, at_ticks: int, /) -> bool:
        """Return True if a birth need not call the sampler: its op needed far more memory than is alive after it."""

    @property
    def handed_on_bytes(self) -> int:
        """Bytes that the running backward made; see the class."""


NEVER: Final = 1 << 62
"""A limit in bytes that no device reaches."""
_dtype_of, _device_of = TENSOR_DICT["dtype"].__get__, TENSOR_DICT["device"].__get__
"""Read fields of a tensor, ignoring properties of a subclass."""
BY_OP, BASELINE = ORIGINS.index("op"), ORIGINS.index("baseline")


class Ledger(Protocol):
    """The figures that change with every birth and death. The backend that writes the births keeps them.

    Attributes:
        count: storages seen so far, which is also the number of the next one.
        hold: whether a new storage is watched by its Python object from birth.
        entry_count: storages with a smaller number existed at the beginning of the block.
    """

    count: int
    hold: bool
    entry_count: int

    def account(self, device: int, /) -> Account:
        """Return the figures of a device, by the string id of its name."""

    def keep_for(self, storages: Storages) -> None:
        """Keep the figures of this table from now on. Called once, when the table is complete."""

    def record_deaths(self, op: int, /) -> None:
        """Append the deaths since the last call. `op` is the number of ops that have started.

        A death gets its own time if `Storages.dead` has it, or else the present time.
        """

    def hold_one(self, tensor: Tensor, known: WatchedTensor, /) -> None:
        """Watch the storage of a tensor through its own Python object from now on. `known` watched it so far."""

    @property
    def watched_number(self) -> Callable[[Tensor, bool], int]:
        """Return the number of a tensor's storage. -1 unless the tensor is plain and the storage known.

        If the second argument is True, a storage made by backward is watched through its own Python object from now on
        when its tensor is gone.
        """

    def rewatch(self, op: int, /) -> None:
        """Watch the storages that backward made through their own Python objects, which does no harm afterwards."""


class Storages:
    """Number the storages that the program uses, and append their births, deaths and resizes.

    Args:
        strings: numbers for texts.
        op_counter: how many ops have started.
        ledger: the backend's figures.
        rows: makes a table of the kind that the backend appends to.
        dead: makes the queue of deaths for the backend.
        estimate: whether fake tensors count, with the bytes that real tensors would take.

    Attributes:
        live: the weak reference of each living storage, by the storage's address.
        roles: a bit for each known role of a living storage, by number.
        dead: weak references whose callback ran, until they are written.
        unseen: kinds of tensors without a storage that can be read.
        is_asleep: whether no step is recorded now. Then new storages get no number.
    """

    def __init__(
        self,
        strings: Strings,
        op_counter: OpCounter,
        ledger: Ledger,
        *,
        rows: Callable[[], Table] = Rows,
        dead: Callable[[], Deaths] = deque,
        estimate: bool = False,
    ) -> None:
        self.estimate = estimate
        self.live: dict[int, WatchedStorage | WatchedTensor] = {}
        self.roles: dict[int, int] = {}
        self.dead = dead()
        self.births = rows()
        self.deaths = rows()
        self.resizes = Rows()
        self.unseen: set[str] = set()
        self.is_asleep = False
        self._resized_asleep: set[int] = set()
        self.ledger = ledger
        self._accounts: dict[int, Account] = {}
        self._limits: dict[int, int] = {}
        self._limit_of: Callable[[str], int] = lambda device: NEVER
        self._reported_above_bytes: dict[int, int] = {}
        self._on_birth: Callable[[int, int, int], None] | None = None
        self._strings = strings
        self._op_counter = op_counter
        self._cpu = strings(CPU)
        self._devices: dict[torch.device, int] = {}
        self._shapes: dict[tuple[Any, ...], int] = {}
        ledger.keep_for(self)

    @property
    def count(self) -> int:
        """How many storages were seen so far."""
        return self.ledger.count

    @property
    def devices(self) -> set[int]:
        """String ids of the devices on which storages were seen."""
        return {self._cpu, *self._devices.values()}

    def gross_bytes(self, device: int) -> int:
        """Return the live bytes of a device, plus the bytes of storages from before the block that have died since."""
        account = self.ledger.account(device)
        return account.live_bytes + account.entry_gone_bytes

    def entry_gone_bytes(self, device: int) -> int:
        """Return the bytes of a device's storages from before the block that have died since."""
        return self.ledger.account(device).entry_gone_bytes

    @property
    def entry_count(self) -> int:
        """Storages with a smaller number existed at the beginning of the block."""
        return self.ledger.entry_count

    @entry_count.setter
    def entry_count(self, count: int) -> None:
        self.ledger.entry_count = count

    def number_of(self, tensor: Tensor, op: int, origin: int) -> int:
        """Return the number of a tensor's storage, or -1 if it has none. Append the birth of a new storage."""
        try:
            key = address_of(tensor)
        except (NotImplementedError, RuntimeError) as error:
            pass_on(error)
            key = 0
        if not key:  # a lazy tensor raises nothing here, but reading its data would crash the process
            self.unseen.add(kind_without_storage(tensor))
            return NONE
        self.record_deaths()
        known = self.live.get(key)
        if (
            known is None
            or is_gone(known)
            or (known.__class__ is WatchedTensor and known.address != address_or_zero(tensor))
        ):
            return NONE if self.is_asleep else self.born(tensor, key, op, origin, ticks())
        if known.__class__ is WatchedTensor and self.ledger.hold:
            self.ledger.hold_one(tensor, known)
        return known.number

    def born(self, tensor: Tensor, key: int, op: int, origin: int, at_ticks: int) -> int:
        """Append the birth of the storage at address `key`, first seen on `tensor`. Return its number."""
        try:
            address = data_address_of(tensor)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            pass_on(error)
            address = 0
        on_cpu = is_on_cpu(tensor)
        device = self._cpu if on_cpu else self.device_id(tensor)
        try:
            shape = self._shapes.get((_dtype_of(tensor), shape_of(tensor)))
        except (RuntimeError, TypeError) as error:
            # nested tensors have no shape, and symbolic shapes cannot be looked up
            pass_on(error)
            shape = None
        if shape is None:
            shape = self.shape_id(tensor)
        ledger = self.ledger
        if ledger.hold or is_on_meta(tensor):  # no allocator reports the death of a meta tensor
            storage = untyped_storage_of(tensor)
            nbytes = known_bytes(storage.nbytes())
            watched: WatchedStorage | WatchedTensor = WatchedStorage(storage, self.dead.append)
        else:
            nbytes = tensor_bytes(tensor)
            watched = WatchedTensor(tensor, self.dead.append)
            watched.address = address
        account = ledger.account(device)
        # no call until everything is written, because a signal handler may raise at any call
        watched.number = number = ledger.count
        watched.key = key
        watched.nbytes = weight = nbytes if address or self.estimate else 0
        watched.device = device
        count, live = number + 1, account.live_bytes + weight
        # memory may run out at this line but not at the next, so every number has one row
        self.births += (number, op, at_ticks, address, nbytes, device, origin, shape)
        ledger.count = count
        if key in self.live:  # an entry of an unnoticed death; the table must stay in the order of the births
            del self.live[key]
        self.live[key] = watched
        account.live_bytes = live
        if live > account.watch_bytes and not account.is_quiet(0, at_ticks):
            self.above_watched(device, weight)
        return number

    def report_births_to(self, on_birth: Callable[[int, int, int], None] | None) -> None:
        """Call `on_birth` at each birth above the watched bytes, and at the first birth on a device.

        Args:
            on_birth: takes the device, the size, and the highest live bytes inside the op. Storages from before the
                block count as live even if they have died. None to stop the calls.
        """
        self._on_birth, self._reported_above_bytes = on_birth, {}
        for device in self.devices:
            self._set_watch_bytes(device)

    def watch(self, device: int, nbytes: int, quiet_bytes: int = -1, quiet_until_ticks: int = 0) -> None:
        """Call `on_birth` for each birth on a device whose op had more than `nbytes` live.

        Storages from before the block count as live even if they have died, because only the block's own memory matters
        here. The op's workspace counts too if the allocator's events are known at once.

        Args:
            device: string id of the device.
            nbytes: the live bytes above which births are reported.
            quiet_bytes: live bytes up to which births are not reported for a while.
            quiet_until_ticks: when that while ends.
        """
        self._reported_above_bytes[device] = nbytes
        account = self._set_watch_bytes(device)
        account.quiet_bytes, account.quiet_until_ticks = quiet_bytes, quiet_until_ticks

    def limit(self, limit_of: Callable[[str], int]) -> None:
        """Set the function that returns the limit of a device. A birth that exceeds it raises an error."""
        self._limit_of, self._limits = limit_of, {}
        for device in self.devices:
            self._set_watch_bytes(device)

    def _set_watch_bytes(self, device: int) -> Account:
        account, name = self.ledger.account(device), self._strings.texts[device]
        self._accounts[device] = account
        limit_bytes = self._limits.setdefault(device, self._limit_of(name))
        reported_above_bytes = NEVER if self._on_birth is None else self._reported_above_bytes.get(device, 0)
        watch_bytes = min(reported_above_bytes - account.entry_gone_bytes, limit_bytes)
        account.watch_bytes = NEVER if name == META else watch_bytes
        account.limit_bytes = NEVER if name == META else limit_bytes
        return account

    def above_watched(self, device: int, nbytes: int, workspace_bytes: int = 0) -> None:
        """Report a birth of `nbytes` bytes to the sampler, or raise the error of the limit.

        Args:
            device: string id of the device.
            nbytes: size of the storage.
            workspace_bytes: bytes that its op needed beyond those live after it, if known.
        """
        account = self._accounts.get(device)
        if account is None:  # the first birth on a device always comes here
            account = self._set_watch_bytes(device)
            if account.live_bytes + workspace_bytes <= account.watch_bytes:
                return
        high_bytes = account.live_bytes + account.entry_gone_bytes + workspace_bytes
        if self._on_birth is not None and high_bytes > self._reported_above_bytes.get(device, 0):
            self._on_birth(device, nbytes, high_bytes)
        limit_bytes = self._limits[device]
        if account.live_bytes + account.handed_on_bytes > limit_bytes:
            self._limits[device] = NEVER  # only once: the program may handle the error and go on
            self._set_watch_bytes(device)
            # not in a variable: the traceback would keep its own error alive
            raise self._above_limit(device, limit_bytes)

    def _above_limit(self, device: int, limit_bytes: int) -> MemoryLimitError:
        where = "" if device == self._cpu else f" on {self._strings.texts[device]}"
        account = self._accounts[device]
        live = format_bytes(account.live_bytes + account.handed_on_bytes)
        error = MemoryLimitError(
            f"{live} of tensors are live{where}, more than the limit of {format_bytes(limit_bytes)}; "
            "raise the limit, or list these tensors: prof.at_peak, or `memwatch summary FILE`"
        )
        error.device = self._strings.texts[device]
        return error

    def record_deaths(self) -> None:
        """Append the deaths since the last call."""
        if self.dead:
            self.ledger.record_deaths(self._op_counter[0])

    def rewatch(self) -> None:
        """After a backward, watch the storages that it made through their own Python objects."""
        self.ledger.rewatch(self._op_counter[0])

    def any_born_since(self, number: int) -> bool:
        """Return True if the newest living storage has at least that number."""
        try:
            newest = next(reversed(self.live.values()), None)
        except RuntimeError as error:  # another thread has just added a storage
            pass_on(error)
            return True
        return newest is not None and newest.number >= number

    def born_since(self, number: int) -> list[tuple[int, int]]:
        """Return number and bytes of living storages from a number on, in the order of their births."""
        if number == self.count:
            return []
        self.record_deaths()
        return sorted((each.number, each.nbytes) for each in self.newest(number))

    def newest(self, number: int) -> list[WatchedStorage | WatchedTensor]:
        """Return the living storages from a number on, oldest first, without reading older ones."""
        try:
            newest = itertools.takewhile(lambda each: each.number >= number, reversed(self.live.values()))
            return list(newest)[::-1]
        except RuntimeError as error:  # another thread has just added or removed a storage
            pass_on(error)
            return [each for each in list(self.live.values()) if each.number >= number]

    def resized(self, tensor_or_storage: Any) -> None:
        """Append a resize if the size of the storage has changed."""
        storage = tensor_or_storage
        self.record_deaths()
        try:
            if isinstance(storage, Tensor):
                storage = storage.untyped_storage()
            watched, nbytes = self.live.get(storage_address(storage)), known_bytes(storage.nbytes())
            if watched is None or watched.nbytes == nbytes:
                return
            if self.is_asleep:
                self._resized_asleep.add(watched.key)
                return
            has_memory = storage.device.type != "meta"
            if not has_memory and not self.estimate:
                return
            address = storage.data_ptr() if nbytes and has_memory else 0
            more_bytes = nbytes - watched.nbytes
            account = self.ledger.account(watched.device)
            account.live_bytes += more_bytes
            watched.nbytes = nbytes
            if watched.__class__ is WatchedTensor:  # else its next tensor would count as a new storage
                watched.address = address
            self.resizes += ResizesRow(
                storage=watched.number,
                op=self._op_counter[0],
                time_ticks=ticks(),
                nbytes=nbytes,
                address=address,
            )
            if account.live_bytes > account.watch_bytes:
                self.above_watched(watched.device, max(more_bytes, 0))
        except (NotImplementedError, RuntimeError) as error:
            pass_on(error)
            return

    def wake(self) -> None:
        """Number new storages again, and append the resizes that happened meanwhile."""
        self.is_asleep = False
        self.record_deaths()
        for watched in map(self.live.get, self._resized_asleep):
            storage = None if watched is None else watched()
            if storage is not None:
                self.resized(storage)
        self._resized_asleep.clear()

    def device_id(self, tensor: Tensor) -> int:
        """Return the string id of a tensor's device."""
        if answers_by_code(type(tensor)):
            device = device_of(untyped_storage_of(tensor))
        else:  # for torch's own fake tensors, a property returns the simulated device
            device = tensor.device if is_simulated(tensor) else _device_of(tensor)
        number = self._devices.get(device)
        if number is None:
            number = self._devices[device] = self._strings(str(device))
        return number

    def shape_id(self, tensor: Tensor) -> int:
        """Return the string id of a tensor's dtype and shape, such as ``float32[8, 64]``."""
        try:
            key = (_dtype_of(tensor), shape_of(tensor))
            number = self._shapes.get(key)
            if number is None:
                text = f"{str(key[0]).removeprefix('torch.')}[{', '.join(map(str, key[1]))}]"
                number = self._shapes[key] = self._strings(text)
        except (RuntimeError, TypeError) as error:  # symbolic or nested sizes cannot be hashed
            pass_on(error)
            return self._strings(str(_dtype_of(tensor)).removeprefix("torch."))
        return number

    def close(self) -> None:
        """Stop watching. Storages without a death were alive at the end."""
        self.record_deaths()
        self.live.clear()
        self.dead.clear()


class PatchedResize:
    """Report every `resize_` to the table of storages."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self._patches = Patches()

    def start(self) -> None:
        """Begin to receive calls."""
        self._patches.put(torch.UntypedStorage, "resize_", self._resize)

    def stop(self) -> None:
        """Leave torch as it was before `start`."""
        self._patches.take_off()

    def _resize(self, resize: Callable[..., Any], storage: torch.UntypedStorage, nbytes: int) -> Any:
        result = resize(storage, nbytes)
        self._storages.resized(storage)
        return result
