"""The transformer that plans are compared on, and what torch's own `activation_memory_budget` makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch import config
from torch.nn import functional

from memwatch.replay.cost import flops
from memwatch.replay.measure import measure_peak

if TYPE_CHECKING:
    from collections.abc import Callable


class Block(nn.Module):
    """Pre-norm attention with explicit softmax(QK^T), and a GELU MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same shape."""
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        weight = (q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5).softmax(-1)
        x = x + self.out((weight @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Tokens in, logits out: 3.4 million parameters (13.05 MiB) by default."""

    def __init__(self, layers: int = 4, width: int = 256, heads: int = 4, vocabulary: int = 512) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Map token ids (batch, length) to logits (batch, length, vocabulary)."""
        return self.head(self.norm(self.blocks(self.tokens(ids))))


def training_step(batch: int = 8, length: int = 256) -> tuple[Transformer, Callable[[], None]]:
    """Return the model and its forward and backward; gradients are fresh each time and stay."""
    torch.manual_seed(0)
    model = Transformer()
    ids = torch.randint(0, 512, (batch, length))

    def step() -> None:
        model.zero_grad()
        functional.cross_entropy(model(ids).flatten(0, 1), ids.roll(-1, 1).flatten()).backward()

    return model, step


@dataclass(frozen=True)
class Compiled:
    """A step under torch.compile: peak increase (bytes), FLOPs of its graphs, gradients equal to eager's."""

    peak_increase_bytes: int
    flops: int
    equal: bool


def under_torch_budget(budget: float) -> Compiled:
    """Run forward and backward under torch.compile with an `activation_memory_budget` (0 to 1).

    The backend is that of `aot_eager`: AOTAutograd with the min-cut partitioner, graphs run as they are.
    """
    counted: list[int] = []

    def count(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        counted.append(sum(_node_flops(node) for node in graph.graph.nodes))
        return boxed_nop(graph, inputs)

    model, step = training_step()
    step()
    eager = [parameter.grad for parameter in model.parameters()]
    torch._dynamo.reset()
    backend = aot_autograd(
        fw_compiler=count, bw_compiler=count, partition_fn=min_cut_rematerialization_partition
    )
    with config.patch(activation_memory_budget=budget):
        model.forward = torch.compile(model.forward, backend=backend)  # type: ignore[method-assign]
        step()
        model.zero_grad()
        with measure_peak("cpu") as measured:
            step()
    gradients = [parameter.grad for parameter in model.parameters()]
    equal = all(torch.equal(one, other) for one, other in zip(eager, gradients, strict=True))  # type: ignore[arg-type]
    return Compiled(measured.peak_increase_bytes, sum(counted), equal)


def _node_flops(node: fx.Node) -> int:
    if not isinstance(node.target, torch._ops.OpOverload):
        return 0
    values = [item.meta["val"] if isinstance(item, fx.Node) else item for item in node.args]
    return flops(node.target, values, dict(node.kwargs), node.meta.get("val"))
