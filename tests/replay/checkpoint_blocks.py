"""Eight types of small blocks. A checkpoint policy must keep its budget on each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.down(functional.gelu(self.up(x))))


class Transformer(nn.Module):
    def __init__(self, width, dropout=0.1):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1) / (width // 4) ** 0.5).softmax(-1)
        mixed = (self.dropout(scores) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.dropout(self.out(mixed))
        return x + self.mlp(self.norm2(x))


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Llama(nn.Module):
    def __init__(self, width, length=64):
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)
        angle = torch.arange(length)[:, None] / 100 ** torch.arange(width // 4)
        self.register_buffer("cosine", angle.cos())
        self.register_buffer("sine", angle.sin())

    def rotated(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        return x * self.cosine + torch.cat([-right, left], -1) * self.sine

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        h = self.norm1(x)
        q, k, v = (part(h).view(batch, length, 4, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        h = self.norm2(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class BatchNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x))))) + x)


class GroupNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norm1, self.norm2 = nn.GroupNorm(4, width), nn.GroupNorm(4, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(functional.silu(self.norm1(x)))
        return x + self.conv2(functional.silu(self.norm2(h)))


class Lstm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.lstm, self.norm = nn.LSTM(width, width, batch_first=True), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.lstm(x)[0])


class Mixer(nn.Module):
    def __init__(self, width, length=64):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(length, 2 * length), nn.GELU(), nn.Linear(2 * length, length))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Experts(nn.Module):
    def __init__(self, width, count=4):
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x).flatten(0, 1)
        weight, chosen = self.gate(h).softmax(-1).topk(2)
        total = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            row, place = torch.where(chosen == number)
            total = total.index_add(0, row, expert(h[row]) * weight[row, place].unsqueeze(-1))
        return x + total.view_as(x)


BLOCKS: dict[str, tuple[type[nn.Module], int, Callable[[int], tuple[int, ...]]]] = {
    "MLP": (Mlp, 32, lambda scale: (64 * scale, 32)),
    "transformer, dropout": (Transformer, 32, lambda scale: (2 * scale, 64, 32)),
    "Llama": (Llama, 32, lambda scale: (2 * scale, 64, 32)),
    "conv + batch norm": (BatchNorm, 8, lambda scale: (2 * scale, 8, 8, 8)),
    "conv + group norm": (GroupNorm, 8, lambda scale: (2 * scale, 8, 8, 8)),
    "LSTM": (Lstm, 16, lambda scale: (2 * scale, 16, 16)),
    "MLP-Mixer": (Mixer, 32, lambda scale: (2 * scale, 64, 32)),
    "mixture of experts": (Experts, 32, lambda scale: (2 * scale, 32, 32)),
}
"""Name -> (class, width, shape of the input at a scale)."""


def build(name: str, count: int, scale: int = 1) -> tuple[nn.Sequential, Tensor]:
    """Return a model of equal blocks and an input."""
    kind, width, shape = BLOCKS[name]
    torch.manual_seed(0)
    return nn.Sequential(*(kind(width) for _ in range(count))), torch.randn(shape(scale))
