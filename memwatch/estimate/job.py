"""The job that an estimated program believes to be part of: environment, process groups, and no other process."""

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
    """The estimated rank, and the number of ranks; None for the number that the program itself asks for."""

    rank: int = 0
    world_size: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < (self.world_size or self.rank + 1):
            raise MemwatchError(
                f"rank {self.rank} is not in a job of {self.world_size}; the last is {(self.world_size or 1) - 1}"
            )

    @property
    def environment(self) -> dict[str, str]:
        """The variables that torchrun would set on a host with this rank alone."""
        if self.world_size is None:
            return {}
        ranks = {"RANK": self.rank, "WORLD_SIZE": self.world_size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        return {name: str(value) for name, value in ranks.items()} | _ADDRESS


@contextlib.contextmanager
def pretended(job: Job) -> Iterator[None]:
    """Show the program inside a job of that size, with itself as one rank."""
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, job.environment))
        # init_process_group puts one there
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
    """Yield torch's functions that work with other processes, each with its replacement."""
    from torch import multiprocessing
    from torch.distributed import device_mesh, distributed_c10d
    from torch.nn.parallel import distributed as data_parallel

    yield distributed_c10d, "rendezvous", _rendezvous(job)
    yield distributed_c10d, MAKE_GROUP, _fake_group(getattr(distributed_c10d, MAKE_GROUP))
    yield multiprocessing, "spawn", _spawn(job)
    yield data_parallel, VERIFY, lambda *args, **kwargs: None
    if LOG is not None:  # it logs times, and a simulated device has no clock
        yield Logger, LOG, lambda logger: None
    mesh = device_mesh.DeviceMesh
    yield mesh, "__init__", _with_real_ranks(mesh.__init__)
    yield mesh, SUB_MESH, _within(real_tensors, getattr(mesh, SUB_MESH))
    # the buckets come in another order then, of the same bytes in all; the order is sent as values
    if REBUILD is not None:
        yield Reducer, REBUILD, lambda *args: False
    if MAKE_REDUCER is not None:
        maker = data_parallel.DistributedDataParallel
        yield maker, MAKE_REDUCER, _with_reduced_buckets(getattr(maker, MAKE_REDUCER))
    # the whole fake tensors on which an op's shapes are tried are nobody's memory
    yield PROPAGATOR, PROPAGATE, _within(without_modes, getattr(PROPAGATOR, PROPAGATE))
    yield SHARDING, CHUNK, Shards
    for module in (torch.distributed, distributed_c10d):
        yield module, "all_gather_object", _all_gather_object
        yield module, "broadcast_object_list", lambda *args, **kwargs: None


def _rendezvous(job: Job) -> Callable[..., Iterator[tuple[Any, int, int]]]:
    """Return what finds the other ranks at once; the environment or the program says how many, if nobody else."""

    def rendezvous(
        url: str, rank: int = -1, world_size: int = -1, **options: Any
    ) -> Iterator[tuple[Any, int, int]]:
        asked = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
        yield FakeStore(), job.rank, job.world_size or asked

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
        fn(job.rank, *args)

    return spawn


def _with_real_ranks(initialize: Callable[..., None]) -> Callable[..., None]:
    """Return an initializer of meshes that reads tables of ranks: where such a table is fake, ranks are in order."""

    def real(value: Any) -> Any:
        return torch.arange(value.numel(), dtype=torch.int).view(value.shape) if is_fake(value) else value

    def initialize_mesh(*args: Any, **kwargs: Any) -> None:
        with real_tensors():
            initialize(*map(real, args), **{name: real(value) for name, value in kwargs.items()})

    return initialize_mesh


def _with_reduced_buckets(make_reducer: Callable[..., None]) -> Callable[..., None]:
    """Return a maker of reducers for which a bucket is reduced at once: a fake group has no result to return."""

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
    """The shards of a parameter, each cut on demand: a rank needs the first and its own.

    FSDP2 cuts all of them, which takes a tenth of a second for each parameter on 4,096 ranks.
    """

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._dim = tensor, dim
        self._rows = -(-tensor.size(dim) // num_chunks)

    def __getitem__(self, rank: int) -> torch.Tensor:
        """Return what `torch.chunk` gives to a rank; empty where there are fewer rows."""
        start, size = rank * self._rows, self._tensor.size(self._dim)
        if rank and start >= size:
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
