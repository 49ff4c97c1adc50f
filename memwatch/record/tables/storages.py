"""Storage identity, birth and death, by weak references only.

The address of the C++ storage names it while it lives. Its Python object lives exactly as long (TORCH_FACTS:
it is preserved), so a weak reference's callback marks the death, in whatever thread the last reference goes.
That callback is `deque.append`, and the rows are written when the next op starts or ends: in a callback
written in Python a Ctrl-C of the user's would be raised, and lost.

But the Python object counts as an owner, and autograd adds a gradient in place only to a storage with one
owner. So while backward runs, a new storage gets no Python object (`hold` is off): its tensor is watched
until backward has ended, and the allocator's events tell when the memory was freed.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from memwatch.capture.schema import NONE, ORIGINS
from memwatch.errors import MemoryLimitError
from memwatch.record.clock import ticks
from memwatch.record.tables.rows import Rows
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memwatch.record.tables.strings import Strings

NEVER: Final = 1 << 62
_data_address: Callable[[Tensor], int] = torch._C._data_address  # type: ignore[attr-defined]  # copies no lazy clone
address_of = torch._C._storage_address  # type: ignore[attr-defined]  # asks no __torch_function__, makes no object
BY_OP, BASELINE, EXTERNAL = ORIGINS.index("op"), ORIGINS.index("baseline"), ORIGINS.index("external")


class Known(weakref.ref):  # type: ignore[type-arg]  # the stub's class is generic, the real one is not at run time
    """What is known of a storage, by a weak reference to what dies with it."""

    __slots__ = ("key", "nbytes", "number")
    number: int
    key: int
    nbytes: int


class Alive(Known):
    """A weak reference to a living storage."""

    __slots__ = ()


class Passing(Known):
    """A weak reference to the first tensor seen on a storage that has no Python object yet."""

    __slots__ = ("address",)
    address: int


class Storages:
    """Number the storages the program touches; append their births, deaths and resizes."""

    def __init__(
        self,
        strings: Strings,
        ops_started: list[int],
        *,
        estimate: bool = False,
        rows: Callable[[], Rows] = Rows,
    ) -> None:
        self.estimate = estimate
        self.live: dict[int, Alive | Passing] = {}
        self.roles: dict[int, int] = {}
        """A bit for each role that is noted, of the storages that live."""
        self.hold = True
        self.births = rows()
        self.deaths = rows()
        self.resizes = Rows()
        self.live_bytes = 0
        self.count = 0
        self.entry_count = 0
        """Storages with a smaller number were there at entry."""
        self.entry_gone_bytes = 0
        """What of them has died."""
        self.unseen: set[str] = set()
        self.limit_bytes = self.watch_bytes = self._on_birth_bytes = NEVER
        self._on_birth: Callable[[int], None] | None = None
        self.dead: deque[Any] = deque()
        self.burying = False
        self.on_release: Callable[[Any, int, int], None] = lambda release, op, at: None
        self._strings = strings
        self._ops_started = ops_started
        self._cpu = strings("cpu")
        self._devices: dict[torch.device, int] = {}
        self._shapes: dict[tuple[Any, ...], int] = {}

    def number_of(self, tensor: Tensor, op: int, origin: int) -> int:
        """Return the storage number of `tensor`, giving birth to it at first sight; -1 if it has no storage."""
        try:
            key = address_of(tensor)
        except (NotImplementedError, RuntimeError):
            self.unseen.add(_kind_without_storage(tensor))
            return NONE
        self.bury()
        known = self.live.get(key)
        if (
            known is None
            or is_gone(known)
            or (known.__class__ is Passing and known.address != _address_or_zero(tensor))
        ):
            return self.born(tensor, key, op, origin, ticks())
        if known.__class__ is Passing and self.hold:
            self.hold_one(tensor, key, known.number)
        return known.number

    def born(self, tensor: Tensor, key: int, op: int, origin: int, at: int) -> int:
        """Append the birth, at `at` ticks, of the storage with address `key`, first seen as that of `tensor`."""
        try:
            address = _data_address(tensor)
        except (RuntimeError, NotImplementedError, TypeError):
            address = 0
        on_cpu = tensor.is_cpu
        device = self._cpu if on_cpu else self.device_id(tensor)
        try:
            shape = self._shapes.get((tensor.dtype, tensor.shape))
        except (RuntimeError, TypeError):  # nested tensors have no shape, symbolic ones none to look up
            shape = None
        if shape is None:
            shape = self.shape_id(tensor)
        if self.hold or not on_cpu:
            storage = tensor.untyped_storage()
            nbytes = known_bytes(storage.nbytes())
            alive: Alive | Passing = Alive(storage, self.dead.append)
        else:
            nbytes = _nbytes(tensor)
            alive = Passing(tensor, self.dead.append)
            alive.address = address
        # no call until all is written: a signal's handler may raise at any
        alive.number = number = self.count
        alive.key = key
        alive.nbytes = weight = nbytes if address or self.estimate else 0
        self.count = number + 1
        self.live[key] = alive
        self.live_bytes = live = self.live_bytes + weight
        self.births += (number, op, at, address, nbytes, device, origin, shape)
        if live > self.watch_bytes:
            self.high(weight)
        return number

    def watch(self, nbytes: int, on_birth: Callable[[int], None]) -> None:
        """Call `on_birth` with the size of every storage born while more than `nbytes` bytes are live.

        What was there at entry and has died since counts as live: it is what the block made that may be much.
        """
        self._on_birth, self._on_birth_bytes = on_birth, nbytes
        self.watch_bytes = min(nbytes - self.entry_gone_bytes, self.limit_bytes)

    def limit(self, nbytes: int) -> None:
        """Raise at the birth that lifts the live bytes above `nbytes`."""
        self.limit_bytes = nbytes
        self.watch_bytes = min(nbytes, self._on_birth_bytes - self.entry_gone_bytes)

    def high(self, nbytes: int) -> None:
        """Tell of a birth that lifted the live bytes above the watched ones."""
        if self.live_bytes + self.entry_gone_bytes > self._on_birth_bytes and self._on_birth is not None:
            self._on_birth(nbytes)
        if self.live_bytes > self.limit_bytes:
            limit = self.limit_bytes
            self.limit(NEVER)  # once: the program may handle the error and go on
            raise MemoryLimitError(
                f"{format_bytes(self.live_bytes)} of tensors are live, more than limit_bytes={limit}; "
                "see prof.at_peak for what they are, or raise the limit"
            )

    def hold_one(self, tensor: Tensor, key: int, number: int) -> None:
        """Watch a known storage by a Python object from now on."""
        storage = tensor.untyped_storage()
        nbytes = known_bytes(storage.nbytes()) if self.estimate or _address_or_zero(tensor) else 0
        alive = Alive(storage, self.dead.append)
        alive.number, alive.key, alive.nbytes = number, key, nbytes
        self.live[key] = alive
        self.live_bytes += nbytes

    def bury(self) -> None:
        """Append the deaths since the last time, as of now."""
        if not self.dead or self.burying:  # another thread is at it, as one of autograd's or one that resizes
            return
        self.burying = True
        try:
            self._bury(ticks(), self._ops_started[0])
        finally:
            self.burying = False

    def _bury(self, at: int, op: int) -> None:
        dead = self.dead
        while dead:  # each is taken off after it is written, with no call between
            gone = dead[0]
            kind = gone.__class__
            if kind is Alive:
                key, live = gone.key, self.live
                if key in live and live[key] is gone:  # no call: another storage may get the address at one
                    del live[key]
                self.live_bytes -= gone.nbytes
                if gone.number < self.entry_count:
                    self.entry_gone_bytes += gone.nbytes
                    self.watch_bytes -= gone.nbytes
                self.deaths += (gone.number, op, at)
                if gone.number in self.roles:
                    del self.roles[gone.number]
            elif kind is Passing:  # it stays known, for another tensor may show its storage still
                self.live_bytes -= gone.nbytes
            else:
                self.on_release(gone, op, at)
            del dead[0]

    def settle(self) -> None:
        """Watch the storages that backward made and left, now that a Python object of them does no harm."""
        self.bury()
        self.hold = True
        for known in list(
            self.live.values()
        ):  # of keys and values no tuples are made, which gc might collect at
            key = known.key
            if known.__class__ is Passing:
                tensor, live = known(), self.live
                if tensor is None:
                    if key in live and live[key] is known:
                        del live[key]
                    self.roles.pop(known.number, None)
                else:
                    self.live_bytes -= known.nbytes
                    self.hold_one(tensor, key, known.number)

    def any_born_since(self, number: int) -> bool:
        """Tell whether the storage that was born last, of those that live, has at least that number."""
        try:
            newest = next(reversed(self.live.values()), None)
        except RuntimeError:  # one was born in another thread, just now
            return True
        return newest is not None and newest.number >= number

    def resized(self, tensor_or_storage: Any) -> None:
        """Append a resize if the storage changed its size since it was last seen."""
        storage = tensor_or_storage
        self.bury()
        try:
            if isinstance(storage, Tensor):
                storage = storage.untyped_storage()
            alive, nbytes = self.live.get(storage._cdata), known_bytes(storage.nbytes())
            if alive is not None and alive.nbytes != nbytes:
                fake = storage.device.type == "meta"
                if fake and not self.estimate:
                    return
                address = storage.data_ptr() if nbytes and not fake else 0
                more = nbytes - alive.nbytes
                self.live_bytes += more
                alive.nbytes = nbytes
                self.resizes += (alive.number, self._ops_started[0], ticks(), nbytes, address)
                if self.live_bytes > self.watch_bytes:
                    self.high(max(more, 0))
        except (NotImplementedError, RuntimeError):
            return

    def device_id(self, tensor: Tensor) -> int:
        """Return the string id of the device of `tensor`."""
        device = tensor.device
        number = self._devices.get(device)
        if number is None:
            number = self._devices[device] = self._strings(str(device))
        return number

    def shape_id(self, tensor: Tensor) -> int:
        """Return the string id of dtype and shape of `tensor`, as ``float32[8, 64]``."""
        try:
            key = (tensor.dtype, tensor.shape)
            number = self._shapes.get(key)
            if number is None:
                text = f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"
                number = self._shapes[key] = self._strings(text)
        except (RuntimeError, TypeError):  # symbolic or nested sizes cannot be hashed
            return self._strings(str(tensor.dtype).removeprefix("torch."))
        return number

    def close(self) -> None:
        """Stop listening to deaths; what is still alive was alive at the end."""
        self.bury()
        self.live.clear()


def _address_or_zero(tensor: Tensor) -> int:
    try:
        return _data_address(tensor)
    except (RuntimeError, NotImplementedError, TypeError):
        return 0


def is_gone(known: Alive | Passing) -> bool:
    """Tell whether a storage is dead whose death no thread has told of yet: its address may be another's by now."""
    return known.__class__ is Alive and known() is None


def known_bytes(nbytes: Any) -> int:
    """Give a size in bytes as a number; one that is a symbol, as of dynamo's fake tensors, is of no memory."""
    return nbytes if nbytes.__class__ is int else 0


def _nbytes(tensor: Tensor) -> int:
    try:
        return known_bytes(tensor.nbytes)
    except (
        RuntimeError,
        NotImplementedError,
    ):  # a nested tensor has no one size; the allocator tells its block's
        return 0


def plain_parts(tensor: Tensor) -> Iterator[Tensor]:
    """Give the tensors whose storages hold the bytes of `tensor`: itself, or the parts of a wrapper or sparse one."""
    wrapper: Any = tensor
    if is_traceable_wrapper_subclass(wrapper):
        for name in wrapper.__tensor_flatten__()[0]:
            part = getattr(wrapper, name)
            if isinstance(part, Tensor):
                yield from plain_parts(part)
    elif tensor.layout is torch.strided:
        yield tensor
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())


def _kind_without_storage(tensor: Tensor) -> str:
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    return type(tensor).__name__
