"""Estimate one rank of a distributed job in one process.

The program finds the environment variables of its rank, and its process groups are fake.
"""

from __future__ import annotations

import contextlib
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import torch

from memwatch._torch.distributed import MAKE_REDUCER, REBUILD, Reducer
from memwatch._torch.fake import FakeTensor
from memwatch._torch.fake_job import (
    CHUNK,
    LOG,
    MAKE_GROUP,
    PROPAGATE,
    PROPAGATOR,
    SHARDING,
    SUB_MESH,
    VERIFY,
    FakeStore,
    Logger,
    real_tensors,
    register_hook,
)
from memwatch._torch.modes import without_modes
from memwatch.errors import MemwatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ADDRESS: Final = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@dataclass(frozen=True)
class Job:
    """The estimated rank and the number of ranks.

    Attributes:
        rank: the estimated rank.
        world_size: the number of ranks. None if the program itself sets this number.
    """

    rank: int = 0
    world_size: int | None = None

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise MemwatchError(f"rank {self.rank} is below 0; the ranks of a job begin at 0")
        if self.world_size is None:
            return
        if self.world_size < 1:
            raise MemwatchError(f"a job of {self.world_size} ranks; the number of ranks must be at least 1")
        if self.rank >= self.world_size:
            raise MemwatchError(
                f"rank {self.rank} is not in a job of {self.world_size}; the last is {self.world_size - 1}"
            )

    @property
    def environment(self) -> dict[str, str]:
        """The variables that `init_process_group` and programs read, as torchrun sets them for one rank per host."""
        if self.world_size is None:
            return {}
        ranks = {"RANK": self.rank, "WORLD_SIZE": self.world_size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        return {name: str(value) for name, value in ranks.items()} | _ADDRESS


@contextlib.contextmanager
def pretended(job: Job) -> Iterator[None]:
    """Let the program inside the block run as one rank of a job, without the other ranks."""
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, job.environment))
        # init_process_group replaces this hook; put it back after the block
        stack.enter_context(patch.object(sys, "excepthook", sys.excepthook))
        if torch.distributed.is_available():
            for target, name, replacement in _replacements(job):
                stack.enter_context(patch.object(target, name, replacement))
            stack.callback(_end_groups, torch.distributed.is_initialized())
        yield


def _end_groups(was_initialized: bool) -> None:
    if torch.distributed.is_initialized() and not was_initialized:
        torch.distributed.destroy_process_group()


def _replacements(job: Job) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Yield owner, name and replacement of each part of torch that needs other ranks, a clock or real values."""
    from torch import multiprocessing
    from torch.distributed import device_mesh, distributed_c10d
    from torch.nn.parallel import distributed as data_parallel

    yield distributed_c10d, "rendezvous", _rendezvous(job)
    yield distributed_c10d, MAKE_GROUP, _fake_group(getattr(distributed_c10d, MAKE_GROUP))
    yield multiprocessing, "spawn", _spawn(job)
    yield data_parallel, VERIFY, lambda *args, **kwargs: None
    if LOG is not None:  # it logs times, and a pretended device has no clock
        yield Logger, LOG, lambda logger: None
    mesh = device_mesh.DeviceMesh
    yield mesh, "__init__", _with_real_ranks(mesh.__init__)
    yield mesh, SUB_MESH, _within(real_tensors, getattr(mesh, SUB_MESH))
    # DDP would sort its buckets again, and send their order to the other ranks as the values of a tensor. Fake tensors
    # lack values. The buckets have the same bytes in any order.
    if REBUILD is not None:
        yield Reducer, REBUILD, lambda *args: False
    if MAKE_REDUCER is not None:
        maker = data_parallel.DistributedDataParallel
        yield maker, MAKE_REDUCER, _with_reduced_buckets(getattr(maker, MAKE_REDUCER))
    # DTensor runs an op on fake tensors of the full size to learn the shapes of its results. memwatch must not count
    # these tensors.
    yield PROPAGATOR, PROPAGATE, _within(without_modes, getattr(PROPAGATOR, PROPAGATE))
    yield SHARDING, CHUNK, Shards
    for module in (torch.distributed, distributed_c10d):
        yield module, "all_gather_object", _all_gather_object
        yield module, "broadcast_object_list", lambda *args, **kwargs: None


def _rendezvous(job: Job) -> Callable[..., Iterator[tuple[Any, int, int]]]:
    """Return a replacement of torch's search for the other ranks. It needs no other process.

    The number of ranks is the number of the job, else the program's argument, else the variable WORLD_SIZE.
    """

    def rendezvous(
        url: str, rank: int = -1, world_size: int = -1, **options: Any
    ) -> Iterator[tuple[Any, int, int]]:
        from_program = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
        yield FakeStore(), job.rank, job.world_size or from_program

    return rendezvous


def _fake_group(make: Callable[..., Any]) -> Callable[..., Any]:
    def make_fake(
        size: int, rank: int, ranks: list[int], backend: Any, store: Any, *args: Any, **kwargs: Any
    ) -> Any:
        kwargs |= {"backend_options": None, "device_id": None}
        return make(size, rank, ranks, torch.distributed.Backend("fake"), FakeStore(), *args, **kwargs)

    return make_fake


def _spawn(job: Job) -> Callable[..., None]:
    def spawn(fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, **options: Any) -> None:
        fn(job.rank, *args)  # in this process, for the estimated rank alone

    return spawn


def _with_real_ranks(initialize: Callable[..., None]) -> Callable[..., None]:
    """Return an `__init__` of DeviceMesh that gets a real tensor of ranks.

    A fake tensor has no values. Replace it by ranks in ascending order, as `init_device_mesh` makes them.
    """

    def real(value: Any) -> Any:
        return torch.arange(value.numel(), dtype=torch.int).view(value.shape) if is_fake(value) else value

    def initialize_mesh(*args: Any, **kwargs: Any) -> None:
        with real_tensors():
            initialize(*map(real, args), **{name: real(value) for name, value in kwargs.items()})

    return initialize_mesh


def _with_reduced_buckets(make_reducer: Callable[..., None]) -> Callable[..., None]:
    """Return a function that makes a reducer of DDP and gives it a hook, which returns each bucket at once.

    A reducer waits for the result of its process group, and a fake group never sends one.
    """

    def make(ddp: Any, *args: Any, **kwargs: Any) -> None:
        make_reducer(ddp, *args, **kwargs)
        register_hook(ddp.reducer, None, _reduced)

    return make


def _reduced(state: None, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    torch.distributed.all_reduce(bucket.buffer())
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class Shards:
    """The shards of a parameter. Each shard is cut when it is read, because a rank reads only the first and its own.

    FSDP2 itself cuts all shards, which takes 0.1 s for each parameter with 4,096 ranks.
    """

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._dim = tensor, dim
        self._rows = -(-tensor.size(dim) // num_chunks)

    def __getitem__(self, rank: int) -> torch.Tensor:
        """Return the shard of a rank, as `torch.chunk` cuts it. The last ranks may get no rows, but an empty vector."""
        start, size = rank * self._rows, self._tensor.size(self._dim)
        # of a parameter without rows, each rank gets an empty tensor with the other dimensions of the parameter
        if self._rows and start >= size:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(self._rows, size - start))


def _within(guard: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        with guard():
            return function(*args, **kwargs)

    return guarded


def is_fake(value: Any) -> bool:
    """Return True for a fake tensor."""
    return isinstance(value, FakeTensor)


def _all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    object_list[:] = [obj] * len(object_list)
