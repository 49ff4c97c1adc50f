"""Ranks of a gloo group: each trains in a block while its allocator is counted; rank 0 gathers the readings."""

from __future__ import annotations

import ctypes
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from libraries import HOST_COUNT, library
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import memwatch

ROUNDS = 6
BATCH_BYTES = 128 * 32 * 4


def _net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))


def ddp():
    return DistributedDataParallel(_net())


def fsdp2():
    net = _net()
    for layer in (net[0], net[2]):
        fully_shard(layer)
    return fully_shard(net)


def steps_of(net):
    """Return two training steps; each rank has a batch of another size."""
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)
    batch = torch.randn(64 * (1 + dist.get_rank()), 32)

    def steps():
        for _ in range(2):
            net(batch).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return steps


def check(make, folder, host):
    """Record the steps into a file. Its peak and the gathered peak equal the allocator's.

    A thread of gloo that drops the last reference frees the memory first and then waits for Python's lock. So a round
    may count a buffer a moment longer than it lives, never shorter.
    """
    steps = steps_of(make())
    steps()
    above = []
    for _ in range(ROUNDS):
        memwatch_file(folder, make).unlink(missing_ok=True)
        with memwatch.profile(memwatch_file(folder, make)) as prof:
            host.begin()
            steps()
            counted_bytes = host.peak_increase_bytes()
        above.append(prof.peak_increase_bytes - counted_bytes)
    assert min(above) == 0, (make.__name__, dist.get_rank(), above)
    ranks = prof.gather()
    assert (ranks is None) == (dist.get_rank() != 0)
    if ranks is not None:
        assert ranks.compared == ["rank 0", "rank 1"]
        assert ranks.ranks["peak_increase_bytes"]["rank 0"] == prof.peak_increase_bytes
        assert ranks.worst == "rank 1"
        assert ranks.notes == []


def tensor_parallel():
    """Return a step that gathers the batch, which backward reads, and in backward the gradients of the outputs."""
    plan = {"0": ColwiseParallel(input_layouts=Shard(0)), "2": RowwiseParallel(output_layouts=Shard(0))}
    net = parallelize_module(_net(), init_device_mesh("cpu", (2,)), plan)
    half = torch.randn(64, 32)
    return lambda: net(half).pow(2).mean().backward()


def pipelined():
    """Return a pipelined step. Each stage receives as many bytes as a batch: one an input, the other a gradient."""
    net, batch = _net(), torch.randn(128, 32)

    def first():
        out = net(batch)
        dist.send(out.detach(), 1)
        received = torch.empty_like(out)
        dist.recv(received, 1)
        out.backward(received)

    def last():
        received = torch.empty(128, 32)
        dist.recv(received, 0)
        net(received.requires_grad_()).pow(2).mean().backward()
        dist.send(received.grad, 0)

    return last if dist.get_rank() else first


def check_collectives(make, category, nbytes, folder):
    """Check that storages which a collective made or wrote count for it, and keep the category of their purpose."""
    step = make()
    step()
    with memwatch.profile(memwatch_file(folder, make)) as prof:
        step()
    ranks = prof.gather()
    made = prof.storages[
        prof.storages["rule"].str.contains("collective") | (prof.storages["category"] == "input")
    ]
    assert category in made.loc[made["nbytes"] == BATCH_BYTES, "category"].tolist(), made
    if ranks is not None:
        assert ranks.ranks["communication_bytes"].tolist() == [nbytes, nbytes]


def memwatch_file(folder, make):
    return pathlib.Path(folder) / f"{make.__name__}.rank{dist.get_rank()}.memwatch"


def counted_host():
    """Return the library that counts the allocations of the host's allocator from now on, in every thread."""
    host = ctypes.CDLL(str(library(HOST_COUNT)))
    host.peak_increase_bytes.restype = ctypes.c_int64
    host.install()
    return host


def be_rank(rank, world, folder):
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-6)  # a thread that waits for Python's lock gets it at once
    host = counted_host()
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    for make in (ddp, fsdp2):
        check(make, folder, host)
    check_collectives(tensor_parallel, "activation", 2 * BATCH_BYTES, folder)
    check_collectives(pipelined, "input" if rank else "communication", BATCH_BYTES, folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = sys.argv[1]
    with memwatch.profile():  # loads the modules of the ranks once, and so do these
        torch.ones(1)
    child = os.fork()
    try:
        be_rank(int(child == 0), 2, folder)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    if child == 0:
        os._exit(code)  # gloo's threads need not be waited for
    _, status = os.waitpid(child, 0)
    os._exit(code or os.waitstatus_to_exitcode(status))
