"""The three training steps that the overhead table is measured on; each returns a `step()` to call."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable


def mlp() -> Callable[[], None]:
    """A 4-layer MLP of width 64, batch 8, AdamW (foreach=False): many tiny ops."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)])
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    batch = torch.randn(8, 64)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()

    return step


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attention = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A small GPT with tied embeddings."""

    def __init__(
        self, vocabulary: int = 512, width: int = 256, layers: int = 4, heads: int = 4, length: int = 128
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Run it."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(places))))


def gpt(
    vocabulary: int = 512, width: int = 256, length: int = 128, batch_size: int = 4
) -> Callable[[], None]:
    """A 4-layer GPT, d=256, T=128, B=4, with AdamW."""
    torch.manual_seed(0)
    model = GPT(vocabulary, width, length=length)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tokens = torch.randint(0, vocabulary, (batch_size, length + 1))

    def step() -> None:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


class Residual(nn.Module):
    """The basic block of ResNet-18."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
        plain = stride == 1 and inner == outer
        self.down = (
            nn.Identity()
            if plain
            else nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (y + self.down(x)).relu()


def resnet(first_width: int = 64, batch_size: int = 4, side: int = 64) -> Callable[[], None]:
    """A ResNet-18-like network on 4x3x64x64 with SGD and momentum."""
    torch.manual_seed(0)
    widths = [first_width * times for times in (1, 1, 2, 4, 8)]
    layers: list[nn.Module] = [
        nn.Conv2d(3, first_width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(first_width),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    for inner, outer in itertools.pairwise(widths):
        layers += [Residual(inner, outer, 1 if inner == outer else 2), Residual(outer, outer, 1)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=False)
    images, labels = torch.randn(batch_size, 3, side, side), torch.randint(0, 10, (batch_size,))

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def thin_resnet() -> Callable[[], None]:
    """The ops of `resnet` on small tensors: its own step varies less, so what is added to it shows."""
    return resnet(first_width=4, batch_size=2, side=32)


WORKLOADS = {"MLP": mlp, "GPT": gpt, "ResNet": resnet}
THIN = {"ResNet, thin": thin_resnet}
