"""Small training programs of many kinds, for the table of budgets: each is a model and a step that is given it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    Step = Callable[[Callable[..., Any]], Tensor]
    Program = tuple[nn.Module, Step]


class Block(nn.Module):
    """Attention and MLP, pre-norm or post-norm."""

    def __init__(
        self, width: int, *, dropout: float = 0.0, causal: bool = False, post_norm: bool = False
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout, self.causal, self.post_norm = dropout, causal, post_norm

    def attend(self, x: Tensor) -> Tensor:
        """Mix positions."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * width**-0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -1e9)
        mixed = functional.dropout(scores.softmax(-1), self.dropout) @ v
        return functional.dropout(self.out(mixed.transpose(1, 2).reshape(x.shape)), self.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same shape."""
        if self.post_norm:
            x = self.norm1(x + self.attend(x))
            return self.norm2(x + self.mlp(x))
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Tokens in, logits out."""

    def __init__(self, layers: int = 4, width: int = 64, **options: Any) -> None:
        super().__init__()
        self.tokens = nn.Embedding(128, width)
        self.blocks = nn.ModuleList(Block(width, **options) for _ in range(layers))
        self.head = nn.Linear(width, 128)

    def forward(self, ids: Tensor) -> Tensor:
        """Map (batch, length) to (batch, length, vocabulary)."""
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class LlamaBlock(nn.Module):
    """RMSNorm, fused attention, SwiGLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same shape."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Mixer(nn.Module):
    """One block of an MLP-Mixer over 16 places."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.places = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16, width) to the same shape."""
        x = x + self.places(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Experts(nn.Module):
    """Two of four experts for each token, weighted."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
            for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (tokens, width) to the same shape."""
        weight = self.router(x).softmax(-1)
        chosen = torch.zeros_like(weight).scatter(-1, weight.topk(2).indices, 1.0)
        outputs = (expert(x) * (weight * chosen)[:, [index]] for index, expert in enumerate(self.experts))
        return x + torch.stack(list(outputs)).sum(0)


def residual(inside: int, outside: int, stride: int) -> nn.Module:
    """Return a residual block with batch norm."""
    return _Residual(inside, outside, stride)


class _Residual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        self.skip = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.skip(x))


class UNet(nn.Module):
    """Two levels down and up, with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.middle, self.up2 = nn.Conv2d(16, 16, 3, padding=1), nn.ConvTranspose2d(16, 16, 2, 2)
        self.up1, self.last = nn.ConvTranspose2d(32, 8, 2, 2), nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to images."""
        one = functional.relu(self.down1(x))
        two = functional.relu(self.down2(functional.max_pool2d(one, 2)))
        x = self.up2(functional.relu(self.middle(functional.max_pool2d(two, 2))))
        x = self.up1(torch.cat([x, two], 1))
        return self.last(torch.cat([x, one], 1))


class _Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(16, 32), nn.Linear(32, 4)  # dynamo compiles no nn.LSTM

    def forward(self, x: Tensor) -> Tensor:
        state, outputs = None, []
        for place in x.unbind(1):
            state = self.cell(place, state)
            outputs.append(state[0])
        return self.head(torch.stack(outputs, 1))


class _Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = mlp(6, 64), mlp(6, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


class _TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(6, 64)
        self.one, self.other = nn.Linear(64, 8), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x)
        return self.one(x), self.other(x)


def mlp(layers: int, width: int) -> nn.Sequential:
    """Return linear layers with GELU between them."""
    parts = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
    return nn.Sequential(*parts)


def _squares(model: nn.Module, *inputs: Tensor) -> Program:
    return model, lambda call: call(*inputs).square().mean()


def _tokens(model: nn.Module) -> Program:
    ids = torch.randint(0, 128, (8, 64))
    return model, lambda call: functional.cross_entropy(call(ids).flatten(0, 1), ids.roll(-1, 1).flatten())


def _two_losses() -> Program:
    x = torch.randn(256, 64)

    def step(call: Callable[..., Any]) -> Tensor:
        one, other = call(x)
        return one.square().mean() + other.abs().mean()

    return _TwoHeads(), step


def _twice() -> Program:
    x, y = torch.randn(256, 64), torch.randn(256, 64)
    return mlp(6, 64), lambda call: (call(x) - call(y)).square().mean()


def _group_norm() -> nn.Module:
    blocks = [
        nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU()) for _ in range(6)
    ]
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *blocks)


def _llama() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(128, 64), *(LlamaBlock(64) for _ in range(3)), nn.RMSNorm(64), nn.Linear(64, 128)
    )


def _vit() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 4, 4), nn.Flatten(2), _Transposed(), *(Block(64) for _ in range(3)), nn.LayerNorm(64)
    )


class _Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "GPT2, dropout": lambda: _tokens(Transformer(3, dropout=0.1, causal=True)),
    "Llama": lambda: _tokens(_llama()),
    "BERT, dropout": lambda: _tokens(Transformer(3, dropout=0.1, post_norm=True)),
    "ViT": lambda: _squares(_vit(), torch.randn(8, 3, 32, 32)),
    "U-Net": lambda: _squares(UNet(), torch.randn(2, 1, 32, 32)),
    "ResNet, batch norm": lambda: _squares(
        nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), residual(8, 8, 1), residual(8, 16, 2), residual(16, 16, 1)),
        torch.randn(4, 3, 32, 32),
    ),
    "conv, group norm": lambda: _squares(_group_norm(), torch.randn(2, 3, 32, 32)),
    "LSTM": lambda: _squares(_Lstm(), torch.randn(16, 24, 16)),
    "MLP-Mixer": lambda: _squares(nn.Sequential(*(Mixer(32) for _ in range(4))), torch.randn(32, 16, 32)),
    "experts": lambda: _squares(nn.Sequential(*(Experts(32) for _ in range(3))), torch.randn(256, 32)),
    "graph break": lambda: _squares(_Broken(), torch.randn(1024, 64)),
    "two losses": _two_losses,
    "used twice": _twice,
}
"""Name -> what builds the model, and a step that is given the model or what stands for it and returns the loss."""
