"""Programs that hand their training to torch's compiler or its distributed wrappers."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from truth_facts import GRAD, GRADIENT, LIBRARY, RESULT, SAVED, UNNAMED, Fact, Ran, f32, pattern, var

import memwatch

ROWS, IN, HIDDEN, OUT = 101, 47, 331, 23
ALIVE = f"{SAVED}|{GRADIENT}|{RESULT}|{UNNAMED}"


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
    Fact(f32(ROWS, HIDDEN), "activation", "hidden", SAVED, r"(.*\.)?up", "addmm"),
    Fact(f32(ROWS, HIDDEN), "activation", "hidden", SAVED, ".+", "gelu.default"),
    Fact(f32(ROWS, HIDDEN), "temporary", "outputs", GRADIENT, ".*down", "mm.default"),
    Fact(f32(ROWS, HIDDEN), "temporary", "hidden", GRADIENT, ".+", "gelu_backward"),
    Fact(f32(ROWS, IN), "input", "ranked batch", f"{SAVED}|{var('x')}"),
)


def train_ranked(ranked, prof):
    optimizer = torch.optim.SGD(ranked.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(ROWS, IN)  # peak: ranked batch
        ranked(x).pow(2).mean().backward()  # peak: bucket again
        optimizer.step()
        optimizer.zero_grad()
        prof.step()


# The first step shows the order of the gradients, and the second step makes its buckets anew. A thread of gloo may
# keep the first buckets until then.
@pattern(
    Fact(f32(ALL), "communication", f"wrap|bucket again||{LIBRARY}", "bucket|[Rr]educer", ".*|"), *ACTIVATIONS
)
def ddp():
    from torch.nn.parallel import DistributedDataParallel

    net = Net()
    with process_group(), memwatch.profile() as prof:
        ranked = DistributedDataParallel(net)  # peak: wrap
        train_ranked(ranked, prof)
    return Ran(prof, {"net": net})


@pattern(
    Fact(
        f32(ALL),
        "communication|gradient",
        f"wrap views|bucket again||{LIBRARY}",
        f"bucket|[Rr]educer|{GRAD}",
        ".*|",
    ),
    *ACTIVATIONS,
)
def ddp_with_gradients_as_views():
    from torch.nn.parallel import DistributedDataParallel

    net = Net()
    with process_group(), memwatch.profile() as prof:
        ranked = DistributedDataParallel(net, gradient_as_bucket_view=True)  # peak: wrap views
        train_ranked(ranked, prof)
    return Ran(prof, {"net": net})


@pattern(
    *(
        Fact(f32(*shape), category, f"hidden|outputs|sharded step||{LIBRARY}", holder, ".*|")
        for shape in ((HIDDEN, IN), (OUT, HIDDEN))
        for category, holder in (
            ("parameter", "parameter"),
            ("unsharded parameter", "unshard|all-gather|FSDP"),
            ("communication", "reduce-scatter|all-gather|FSDP"),
            ("temporary", GRADIENT),
            ("gradient", f"{GRAD}|gradient of the whole parameter"),  # before it is reduced, and after
        )
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
        "hidden|compiled",  # memory without an op is attributed to the call of the compiled function
        f"{SAVED}|`(addmm|gelu)`",
        ".*|",
        "addmm|gelu.default|a compiled function",
    ),
    Fact(
        f32(ROWS, HIDDEN),
        "temporary",
        "hidden|outputs|compiled",
        # torch 2.11 calls the op after it with the second one
        f"{GRADIENT}|{UNNAMED}|`\\w+`, local|`\\*args`, argument of `__call__`",
        ".*|",
        "mm.default|backward",
    ),
    Fact(
        f32(ROWS, HIDDEN),
        "temporary",
        "hidden|outputs|compiled",
        f"{GRADIENT}|{UNNAMED}|`\\w+`, local",
        ".*|",
        "mul|add.T|erf|exp",
    ),
    Fact(f32(ROWS, IN), "input", "compiled batch", f"{SAVED}|{var('x')}|`primals_\\d+`"),
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
