"""Programs that hand their training to torch's compiler or its distributed wrappers."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from truth_facts import IN_FLIGHT, RESULT, SAVED, UNNAMED, Fact, Ran, f32, pattern, var

import memwatch

ROWS, IN, HIDDEN, OUT = 101, 47, 331, 23
ALIVE = f"{SAVED}|{IN_FLIGHT}|{RESULT}|{UNNAMED}"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, x):
        h = functional.gelu(self.up(x))  # peak: hidden
        return self.down(h)  # peak: outputs


@contextlib.contextmanager
def process_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


ALL = HIDDEN * IN + HIDDEN + OUT * HIDDEN + OUT
ACTIVATIONS = (
    Fact(f32(ROWS, HIDDEN), "activation|temporary", "hidden", ALIVE, "up|net|Net|ddp|.*module", "addmm|gelu"),
    Fact(f32(ROWS, HIDDEN), "temporary", "outputs", f"{IN_FLIGHT}|{RESULT}", ".*down", "mm"),
    Fact(f32(ROWS, IN), "input", "ranked batch", f"{SAVED}|{var('x')}|{UNNAMED}|input"),
)


@pattern(Fact(f32(ALL), "communication", "wrap|", "bucket|[Rr]educer", ".*|"), *ACTIVATIONS)
def ddp():
    from torch.nn.parallel import DistributedDataParallel

    net = Net()
    with process_group(), memwatch.profile() as prof:
        ranked = DistributedDataParallel(net)  # peak: wrap
        optimizer = torch.optim.SGD(ranked.parameters(), lr=0.1)
        for _ in range(3):
            x = torch.randn(ROWS, IN)  # peak: ranked batch
            ranked(x).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(ALL), "communication|gradient", "wrap views|", "bucket|[Rr]educer|grad", ".*|"), *ACTIVATIONS
)
def ddp_with_gradients_as_views():
    from torch.nn.parallel import DistributedDataParallel

    net = Net()
    with process_group(), memwatch.profile() as prof:
        ranked = DistributedDataParallel(net, gradient_as_bucket_view=True)  # peak: wrap views
        optimizer = torch.optim.SGD(ranked.parameters(), lr=0.1)
        for _ in range(3):
            x = torch.randn(ROWS, IN)  # peak: ranked batch
            ranked(x).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    return Ran(prof, {"net": net})


@pattern(
    Fact(
        f32(HIDDEN, IN),
        "unsharded parameter",
        "hidden|outputs|sharded step|",
        "unshard|all-gather|FSDP|group",
        ".*|",
    ),
    Fact(
        f32(OUT, HIDDEN),
        "unsharded parameter",
        "hidden|outputs|sharded step|",
        "unshard|all-gather|FSDP|group",
        ".*|",
    ),
    *ACTIVATIONS,
)
def fully_sharded():
    from torch.distributed.fsdp import fully_shard

    with process_group():
        net = Net()
        mesh = dist.init_device_mesh("cpu", (1,))
        fully_shard(net.up, mesh=mesh)
        fully_shard(net.down, mesh=mesh)
        fully_shard(net, mesh=mesh)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with memwatch.profile() as prof:
            for _ in range(2):
                x = torch.randn(ROWS, IN)  # peak: ranked batch
                net(x).pow(2).mean().backward()  # peak: sharded step
                optimizer.step()
                optimizer.zero_grad()
                prof.step()
    return Ran(prof)


@pattern(
    Fact(
        f32(ROWS, HIDDEN),
        "activation",
        "hidden|compiled",
        f"{SAVED}|compiled",
        "up|net|Net|.*_orig_mod.*",
        "addmm|gelu",
    ),
    Fact(f32(ROWS, HIDDEN), "temporary|activation", "hidden|outputs|compiled", ALIVE, ".*|"),
    Fact(f32(ROWS, IN), "input", "compiled batch", f"{SAVED}|{var('x')}"),
)
def compiled_with_aot_eager():
    torch.compiler.reset()
    net = Net()
    compiled = torch.compile(net, backend="aot_eager")
    compiled(torch.randn(ROWS, IN)).pow(2).mean().backward()
    net.zero_grad()
    with memwatch.profile() as prof:
        for _ in range(2):
            x = torch.randn(ROWS, IN)  # peak: compiled batch
            compiled(x).pow(2).mean().backward()  # peak: compiled
            net.zero_grad()
            del x
            prof.step()
    torch.compiler.reset()
    return Ran(prof, {"net": net})
