"""A training program of a job: three steps of a small transformer, sharded in the way that its first argument names."""

import sys

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WIDTH, HEADS, LAYERS, TOKENS, BATCH, WORDS = 64, 4, 3, 32, 4, 100


class Block(nn.Module):
    """A transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(2)])
        self.qkv = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)])
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, then project up and down."""
        normed = self.norms[0](x)
        q, k, v = (part(normed).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in self.qkv)
        attended = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


def model() -> nn.Sequential:
    """Return embedding, blocks and head."""
    return nn.Sequential(
        nn.Embedding(WORDS, WIDTH), *(Block() for _ in range(LAYERS)), nn.Linear(WIDTH, WORDS)
    )


def sharded(way: str, net: nn.Sequential) -> nn.Module:
    """Return the model, put on the ranks in a way."""
    world = distributed.get_world_size()
    if way == "ddp":
        return DistributedDataParallel(net)
    if way == "ddp-view":
        return DistributedDataParallel(net, gradient_as_bucket_view=True)
    if way.startswith("fsdp2"):
        policy = (
            MixedPrecisionPolicy(param_dtype=torch.bfloat16)
            if way.endswith("bf16")
            else MixedPrecisionPolicy()
        )
        for layer in net:
            fully_shard(layer, mp_policy=policy)
        return fully_shard(net, mp_policy=policy)
    mesh = init_device_mesh("cpu", (world,))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel(), "out": RowwiseParallel()}
    plan |= {f"qkv.{index}": ColwiseParallel() for index in range(3)}
    for block in list(net)[1:-1]:
        parallelize_module(block, mesh, plan)
    return net


def main() -> None:
    """Train."""
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    net = sharded(sys.argv[1], model())
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    for _ in range(3):
        words = torch.randint(WORDS, (BATCH, TOKENS))
        loss = nn.functional.cross_entropy(net(words).flatten(0, 1), words.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())
    distributed.destroy_process_group()


main()
