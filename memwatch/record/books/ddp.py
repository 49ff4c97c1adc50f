"""DistributedDataParallel's buckets: tensors of its reducer, which no binding of torch's returns.

They are born while the reducer is made, and once more when it is rebuilt, in the second forward. Neither call runs
code of the program's. So what is born in it and alive after it is the reducer's. A hook for communication, as one that
compresses, is given a bucket of whatever age.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel

from memwatch._torch.distributed import (
    BROADCAST,
    HAND_OUT,
    MAKE_REDUCER,
    REBUILD,
    GradBucket,
    Reducer,
    backends_of,
    bucket_sizes,
)
from memwatch.record.harmless import Harmless
from memwatch.record.roles import BUCKET, COMMUNICATION, REDUCER_MEMORY
from memwatch.record.when_gone import when_gone

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.record.context import Context
    from memwatch.record.patches import Patches
    from memwatch.record.tables.storages import Storages

_FLAT_COPY: Final = "flat copy for a broadcast of many tensors"


class ReducerBook:
    """Note which storages are the buckets of DistributedDataParallel."""

    def __init__(self, storages: Storages, context: Context) -> None:
        self._storages, self._context = storages, context
        self._harmless = Harmless(context.could_not_record, DistributedDataParallel.__name__)
        self.functions = (self._making, self._rebuilding, self._handing_out, self._broadcasting)
        # by the reducer: who has it, and the bytes of all its buckets
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
        """Do for a model that is older than the block what is done for those made in it; it is being called."""
        self._backed.add(reducer)
        for module, _ in self._context.owners.registry.alive():
            if isinstance(module, DistributedDataParallel) and vars(module).get("reducer") is reducer:
                self._back(module)

    def _back(self, ddp: Any) -> None:
        """Have the backends of a model's process group outlive its reducer, to be let go of by Python then.

        What is watched has an object of Python's. A thread of a backend that is the last to let go of a bucket needs
        Python's lock for it. Where the reducer is the last that has the backend, it waits for the thread with the
        lock, for ever; Python, where it is the last, waits without. No memory of tensors lives longer by this.
        """
        self._backed.add(ddp.reducer)
        when_gone(ddp.reducer, partial(backends_of(ddp).clear))

    def _note(self, born: list[tuple[int, int]], owner: str, sizes: list[int] | None) -> None:
        """Note the role of what was born for a reducer.

        Args:
            born: number and bytes of each storage, in the order of their births.
            owner: who has the buckets.
            sizes: bytes of each bucket, in order: the reducer also keeps a map of the parameters in use. None where
                it makes nothing but buckets, empty where the logger says nothing.
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
    """Return the last storages that have so many bytes together: what a process group was told first may live on."""
    while len(born) > 1 and 0 < nbytes <= sum(size for _, size in born[1:]):
        born = born[1:]
    return born
