"""Distributed programs, run by every rank plainly and observed; a difference is raised in the rank."""

from __future__ import annotations

import copy
import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from compat_frozen import freeze
from compat_harness import EmptyMode
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import memwatch


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def _train(net: nn.Module, steps: int = 2) -> Any:
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(torch.randn(4, 8)).pow(2).mean()
        loss.backward()
        optimizer.step()
    tensors = [*net.parameters(), loss]
    return [
        (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().clone() for tensor in tensors
    ]


def dtensor() -> Any:
    """Sharded and replicated tensors, their redistribution and gradients."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    left = distribute_tensor(torch.randn(8, 8), mesh, [Shard(0)]).requires_grad_()
    right = distribute_tensor(torch.randn(8, 8), mesh, [Replicate()])
    out = (left @ right).relu()
    out.redistribute(mesh, [Replicate()]).sum().backward()
    return out.to_local().detach(), left.grad.to_local(), str(out.placements)


def tensor_parallel() -> Any:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return _train(parallelize_module(_net(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}))


def fsdp2() -> Any:
    net = _net()
    for layer in (net[0], net[2]):
        fully_shard(layer)
    fully_shard(net)
    assert isinstance(net, FSDPModule)
    return _train(net, 3)


def fsdp2_mixed_precision() -> Any:
    net = _net()
    fully_shard(net, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    return _train(net)


def ddp() -> Any:
    return _train(DistributedDataParallel(_net()), 3)


def ddp_find_unused() -> Any:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    return _train(DistributedDataParallel(Half(), find_unused_parameters=True))


def collectives() -> Any:
    x = torch.full((4,), float(dist.get_rank()))
    dist.all_reduce(x)
    parts = [torch.empty(4) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x + dist.get_rank())
    work = dist.all_reduce(parts[0], async_op=True)
    work.wait()
    objects = [None] * dist.get_world_size()
    dist.all_gather_object(objects, {"rank": dist.get_rank()})
    return x, parts, repr(objects)


def _pipeline(schedule: type) -> Any:
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), rank, world, torch.device("cpu"))
    run = schedule(stage, 4, loss_fn=nn.functional.mse_loss)
    torch.manual_seed(5)
    x, target, losses = torch.randn(8, 8), torch.randn(8, 8), []
    out = None
    for _ in range(2):
        out = run.step(x) if rank == 0 else run.step(target=target, losses=losses)
    return [p.grad for p in stage.submod.parameters()], losses, out


def pipeline_gpipe() -> Any:
    return _pipeline(ScheduleGPipe)


def pipeline_1f1b() -> Any:
    return _pipeline(Schedule1F1B)


FAKE = (dtensor, tensor_parallel, fsdp2, fsdp2_mixed_precision)
GLOO = (dtensor, tensor_parallel, fsdp2, ddp, ddp_find_unused, collectives, pipeline_gpipe, pipeline_1f1b)


def check(programs: tuple[Callable[[], Any], ...]) -> None:
    """Run programs plainly and observed in every rank."""
    for program in programs:

        def run(program: Callable[[], Any] = program) -> Any:
            torch.manual_seed(0)
            return copy.deepcopy(freeze(program()))

        run()
        plain = run()
        for intercept in ("key", "mode"):
            with memwatch.profile(intercept=intercept) as prof:
                observed = run()
            if observed != plain and intercept == "mode":
                # under an empty mode too, because any mode changes the version counters of collectives
                with EmptyMode():
                    plain_or_moded = run()
            else:
                plain_or_moded = plain
            if observed != plain_or_moded:
                raise AssertionError(f"{program.__name__} differs under {intercept}: {observed} != {plain}")
            if not len(prof.ops):
                raise AssertionError(f"{program.__name__} recorded no op under {intercept}")
            if [note for note in prof.notes if note[0] == "recorder"]:
                raise AssertionError(f"{program.__name__} under {intercept}: {prof.notes}")
        if run() != plain:
            raise AssertionError(f"{program.__name__} differs after memwatch")


def gloo_rank(rank: int, world: int, file: str) -> None:
    """Be one rank of a gloo group."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
    check(GLOO)
    dist.destroy_process_group()


def fake_rank() -> None:
    """Be rank 0 of four, the others imagined."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    received = torch.zeros(4)
    dist.scatter(received, [torch.ones(4)] * 4)
    # with torch 2.11 nothing is received: have empty memory filled
    torch.use_deterministic_algorithms(not received.any())
    check(FAKE)
    dist.destroy_process_group()


def forked(rank: Callable[[], None]) -> int:
    """Run a rank in a fork of this process, whose modules all ranks need; return the number of the fork."""
    child = os.fork()
    if child:
        return child
    try:
        rank()
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)  # gloo's threads need not be waited for


if __name__ == "__main__":
    if sys.argv[1] == "fake":
        ranks = {forked(fake_rank)}
    else:
        world, file = int(sys.argv[2]), sys.argv[3]
        ranks = {forked(functools.partial(gloo_rank, rank, world, file)) for rank in range(world)}
    while ranks:
        number, status = os.wait()
        ranks.discard(number)
        if status:
            for each in ranks:
                os.kill(each, signal.SIGKILL)  # it would wait for the failed rank
            sys.exit(1)
