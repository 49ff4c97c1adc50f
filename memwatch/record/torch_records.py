"""Memory that torch keeps in its own records: DDP's and FSDP's buffers, autocast's cache, selective checkpoints.

No Python object that a search could find refers to this memory. So memwatch replaces the functions of torch that make
or free it while a block is open, and notes the role of each storage there.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from memwatch._torch.checkpoint import SAVE_RESULT
from memwatch._torch.distributed import (
    BROADCAST,
    HAND_OUT,
    MAKE_REDUCER,
    REBUILD,
    REDUCE,
    UNSHARD,
    WAIT,
    GradBucket,
    Reducer,
    all_gather_output,
    backends_of,
    bucket_sizes,
    flat_parameter,
    gathered,
    group_name,
    loaded_flat_handle,
    loaded_parameter_group,
    reduction_buffers,
    sharded,
    unsharded,
    unsharded_gradients,
)
from memwatch._torch.dynamo import skip_frames_of
from memwatch._torch.modes import disable_torch_function
from memwatch.capture.schema import GRADIENT_PREFIX, NONE
from memwatch.gc_pause import GcPause, pause_gc, resume_gc
from memwatch.patches import Patches
from memwatch.record.compilers import is_tracing
from memwatch.record.harmless import Harmless, call_when_freed
from memwatch.record.roles import (
    AUTOCAST_COPY,
    BUCKET,
    COMMUNICATION,
    REDUCER_MEMORY,
    SAVED_BY_POLICY,
    UNSHARDED,
    UNSHARDED_GRADIENT,
)
from memwatch.record.tables.parts import plain_parts
from memwatch.record.tables.storages import BY_OP, Watched
from memwatch.signal_handlers import raises_later

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.record.context import Context
    from memwatch.record.tables.storages import Storages


class AutocastRecords:
    """Note the storages that autocast's cache frees when an autocast region ends."""

    def __init__(self, storages: Storages, context: Context) -> None:
        self._storages = storages
        self._context = context
        self._harmless = Harmless(context.could_not_record, "autocast's cache")
        self.functions = (self._leaving,)

    def open(self, patches: Patches) -> bool:
        """Begin to read; torch always has it."""
        patches.put(torch.autocast, "__exit__", self._leaving)
        return True

    def _leaving(self, leave: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        is_here = False
        with self._harmless:
            is_here = self._context.is_its_thread
        if not is_here:
            return leave(*args, **kwargs)
        try:
            with self._harmless:
                self._storages.record_deaths()
        finally:  # also at an interrupt: autocast must not stay switched on
            pause: GcPause | None = None
            with self._harmless:
                pause = pause_gc()  # storages that gc frees meanwhile do not belong to the cache
            try:
                result = leave(*args, **kwargs)
            finally:
                if pause is not None:
                    with self._harmless:
                        resume_gc(pause)
        with self._harmless:
            for gone in tuple(self._storages.dead):
                if isinstance(gone, Watched):
                    self._context.roles.add(gone.number, AUTOCAST_COPY, "", lives=False)
        return result


_FLAT_COPY: Final = "flat copy for a broadcast of many tensors"


class ReducerRecords:
    """Note which storages are the buckets of DistributedDataParallel."""

    def __init__(self, storages: Storages, context: Context) -> None:
        self._storages = storages
        self._context = context
        self._harmless = Harmless(context.could_not_record, DistributedDataParallel.__name__)
        self.functions = (self._making, self._rebuilding, self._handing_out, self._broadcasting)
        # reducer -> name of its module, bytes of all its buckets
        self._owners: weakref.WeakKeyDictionary[Any, tuple[str, int]] = weakref.WeakKeyDictionary()
        self._backed: weakref.WeakSet[Any] = weakref.WeakSet()

    def open(self, patches: Patches) -> bool:
        """Begin to read; torch always has it."""
        if MAKE_REDUCER is not None:
            patches.put(DistributedDataParallel, MAKE_REDUCER, self._making)
        if REBUILD is not None:
            patches.put(Reducer, REBUILD, self._rebuilding)
        if HAND_OUT is not None:
            patches.put(GradBucket, HAND_OUT, self._handing_out)
        if BROADCAST is not None:
            patches.put(torch.distributed, BROADCAST, self._broadcasting)
        return True

    def _making(self, make: Callable[..., Any], ddp: Any, *args: Any, **kwargs: Any) -> Any:
        first = self._storages.count
        result = make(ddp, *args, **kwargs)
        with self._harmless:
            if self._context.is_its_thread:
                name = f"{type(ddp).__name__}({type(ddp.module).__name__})"
                self._back(ddp)
                sizes = bucket_sizes(ddp)
                self._owners[ddp.reducer] = name, sum(sizes)
                self._note(self._storages.born_since(first), name, sizes)
        return result

    def _rebuilding(self, rebuild: Callable[..., Any], reducer: Any, *args: Any, **kwargs: Any) -> Any:
        if reducer not in self._backed:
            with self._harmless:
                self._back_from_before(reducer)
        first = self._storages.count
        is_rebuilt = rebuild(reducer, *args, **kwargs)
        with self._harmless:
            if is_rebuilt and self._context.is_its_thread:
                owner, nbytes = self._owners.get(reducer, (DistributedDataParallel.__name__, 0))
                self._note(_last_with(nbytes, self._storages.born_since(first)), owner, None)
        return is_rebuilt

    def _handing_out(self, hand_out: Callable[..., Any], bucket: Any, *args: Any, **kwargs: Any) -> Any:
        buffer = hand_out(bucket, *args, **kwargs)
        with self._harmless:
            if self._context.is_its_thread:
                name = f"bucket {bucket.index()} of {DistributedDataParallel.__name__}"
                self._context.roles.note(buffer, BUCKET, name)
        return buffer

    def _back_from_before(self, reducer: Any) -> None:
        """Treat a model from before the block, which is being called now, like a model made in the block."""
        self._backed.add(reducer)
        for module, _ in self._context.owners.registry.alive():
            if isinstance(module, DistributedDataParallel) and vars(module).get("reducer") is reducer:
                self._back(module)

    def _back(self, ddp: Any) -> None:
        """Keep the backends of a model's process group alive until Python can free them, after the reducer.

        A watched bucket has a Python object. If a backend's thread drops the last reference to the bucket, it needs
        Python's lock. If the reducer drops the last reference to the backend, it waits for that thread while it holds
        the lock: a deadlock. Python does not hold the lock when it frees the backend. No tensor lives longer because of
        this.
        """
        self._backed.add(ddp.reducer)
        call_when_freed(ddp.reducer, partial(backends_of(ddp).clear))

    def _note(self, born: list[tuple[int, int]], owner: str, sizes: list[int] | None) -> None:
        """Note the roles of storages that a reducer made.

        Args:
            born: number and bytes of each storage, in the order of their births.
            owner: name of the module that has the buckets.
            sizes: bytes of each bucket, in order. They distinguish buckets from the reducer's map of used parameters.
                None if the reducer makes only buckets. Empty if torch's logger has no sizes.
        """
        count = 0
        for number, nbytes in born:
            if sizes is None or (count < len(sizes) and nbytes == sizes[count]):
                self._context.roles.add(number, BUCKET, f"bucket {count} of {owner}")
                count += 1
            elif not sizes:
                self._context.roles.add(number, REDUCER_MEMORY, f"memory of the reducer of {owner}")
            else:
                self._context.roles.add(number, COMMUNICATION, f"map of used parameters of {owner}")

    def _broadcasting(self, broadcast: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        first = self._storages.count
        result = broadcast(*args, **kwargs)
        with self._harmless:
            if self._context.is_its_thread:
                living = dict(self._storages.born_since(first))
                for number in range(first, self._storages.count):
                    self._context.roles.add(number, COMMUNICATION, _FLAT_COPY, lives=number in living)
        return result


def _last_with(nbytes: int, born: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the last storages that have this many bytes together. Older ones may be communication."""
    while len(born) > 1 and 0 < nbytes <= sum(size for _, size in born[1:]):
        born = born[1:]
    return born


class ParameterGroupRecords:
    """Note the buffers of FSDP2's parameter groups at the calls that change them."""

    def __init__(self, storages: Storages, context: Context) -> None:
        self._storages = storages
        self._context = context
        self._harmless = Harmless(context.could_not_record, "fully_shard")
        self.functions = (self._unsharding, self._waiting, self._reducing)
        self._groups: weakref.WeakSet[Any] = weakref.WeakSet()

    def open(self, patches: Patches) -> bool:
        """Begin to read if FSDP2 is imported by now; return whether it is."""
        group = loaded_parameter_group()
        if group is not None:
            patches.put(group, UNSHARD, self._unsharding)
            patches.put(group, WAIT, self._waiting)
            patches.put(group, REDUCE, self._reducing)
        return group is not None

    def _unsharding(self, unshard: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
        first = self._storages.count
        result = unshard(group, *args, **kwargs)
        with self._harmless:
            buffer = all_gather_output(group)
            if buffer is not None:
                self._context.roles.note(buffer, COMMUNICATION, f"all-gather buffer of {_owner(group)}")
            self._note_rest(first, f"all-gather input of {_owner(group)}")
        return result

    def _waiting(self, wait: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
        result = wait(group, *args, **kwargs)
        with self._harmless:
            for name, tensor in unsharded(group):
                self._context.roles.note(tensor, UNSHARDED, name)
            if group not in self._groups:
                self._groups.add(group)
                for name, tensor in sharded(group):
                    self._context.owners.own(tensor, name)
        return result

    def _reducing(self, reduce: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
        with self._harmless:
            for name, tensor in unsharded_gradients(group):
                self._context.roles.note(tensor, UNSHARDED_GRADIENT, f"{GRADIENT_PREFIX}{name}")
        first = self._storages.count
        result = reduce(group, *args, **kwargs)
        with self._harmless:
            for what, tensor in reduction_buffers(group):
                self._context.roles.note(tensor, COMMUNICATION, f"{what} of {_owner(group)}")
            self._note_rest(first, f"reduced gradients of {_owner(group)}")
        return result

    def _note_rest(self, first: int, name: str) -> None:
        """Give the communication role to storages that were born since `first` and have no role."""
        if not self._context.is_its_thread:
            return
        living = dict(self._storages.born_since(first))
        for number in range(first, self._storages.count):
            if not self._storages.roles.get(number):
                self._context.roles.add(number, COMMUNICATION, name, lives=number in living)


def _owner(group: Any) -> str:
    name = group_name(group)
    return f"`{name}`" if name else "the root module"


class FlatParameterRecords:
    """Note which storages hold a gathered flat parameter."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._harmless = Harmless(context.could_not_record, "FullyShardedDataParallel")
        self.functions = (self._unsharding,)

    def open(self, patches: Patches) -> bool:
        """Begin to read if FullyShardedDataParallel is imported by now; return whether it is."""
        handle = loaded_flat_handle()
        if handle is not None:
            patches.put(handle, UNSHARD, self._unsharding)
        return handle is not None

    def _unsharding(self, unshard: Callable[..., Any], handle: Any, *args: Any, **kwargs: Any) -> Any:
        result = unshard(handle, *args, **kwargs)
        with self._harmless:
            flat, names = flat_parameter(handle)
            name, module = self._context.owners.name_of(flat)
            for tensor in gathered(flat):
                self._context.roles.note(tensor, UNSHARDED, name or names, module)
        return result


class SelectiveCheckpointRecords:
    """Note which storages a selective checkpoint saves, and until when.

    Args:
        storages: the storages that are alive.
        context: who runs, and the roles so far.
    """

    def __init__(self, storages: Storages, context: Context) -> None:
        self._storages = storages
        self._context = context
        self._harmless = Harmless(context.could_not_record, "a selective checkpoint")
        self.functions = (self._saving, self._dropped)
        self._wrappers: dict[weakref.ref[Any], list[int]] = {}

    def open(self, patches: Patches) -> bool:
        """Begin to read; torch always has it."""
        if SAVE_RESULT is not None:
            patches.put(*SAVE_RESULT, self._saving)
        return True

    def _saving(self, wrap: Callable[..., None], wrapper: Any, value: Any) -> None:
        wrap(wrapper, value)
        with self._harmless:
            if isinstance(value, Tensor) and self._context.is_its_thread and not is_tracing():
                # the op is still running: torch 2.11 wraps the result before the recorder sees it
                op = self._context.roles.op_counter[0] - 1
                with disable_torch_function():
                    numbers = [self._storages.number_of(part, op, BY_OP) for part in plain_parts(value)]
                for number in numbers:
                    if number != NONE:
                        self._context.roles.add(number, SAVED_BY_POLICY, "")
                self._wrappers[weakref.ref(wrapper, self._dropped)] = numbers

    @raises_later
    def _dropped(self, wrapper: weakref.ref[Any]) -> None:
        with self._harmless:
            for number in self._wrappers.pop(wrapper, ()):
                if number in self._storages.roles:  # otherwise it died with its wrapper
                    self._context.role_ends.end(number, SAVED_BY_POLICY)


class Records(Protocol):
    """A reader of torch's records of one kind of memory.

    Attributes:
        functions: methods that run in place of torch's functions.
    """

    functions: tuple[Any, ...]

    def open(self, patches: Patches) -> bool:
        """Begin to read if that part of torch is imported. Return whether it is."""


class TorchRecords:
    """Note the roles of memory that torch keeps in C++ or frees by resizing.

    While the block is open, memwatch replaces the functions of torch that make or free such memory. Programs that
    never call them pay nothing.
    """

    def __init__(self, storages: Storages, context: Context) -> None:
        self._context = context
        self._patches = Patches()
        self._records: tuple[Records, ...] = (  # the patches hold only weak references to them
            ReducerRecords(storages, context),
            ParameterGroupRecords(storages, context),
            FlatParameterRecords(context),
            AutocastRecords(storages, context),
            SelectiveCheckpointRecords(storages, context),
        )
        self._waiting: tuple[Records, ...] = self._records
        for records in self._records:
            for function in records.functions:  # they may run where dynamo evaluates frames
                skip_frames_of(function.__code__)

    def start(self) -> None:
        """Begin to read. FSDP2 may be imported later, so the context calls `look` before each forward."""
        self._context.before_forward = self.look
        self.look()

    def look(self) -> None:
        """Begin to read the parts of torch that have been imported by now."""
        self._waiting = tuple(each for each in self._waiting if not each.open(self._patches))
        if not self._waiting:
            self._context.before_forward = None

    def stop(self) -> None:
        """Leave torch as it was before `start`."""
        self._context.before_forward = None
        self._patches.take_off()
