"""Whole training steps to record and replay: small, but with every op family that a real one has."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Step = Callable[[], object]


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) / (width // self.heads) ** 0.5
        mixed = functional.dropout(scores.softmax(-1), self.dropout, self.training) @ v
        x = x + functional.dropout(
            self.out(mixed.transpose(1, 2).reshape(batch, length, width)), self.dropout, self.training
        )
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(
        self, *, layers=2, width=32, heads=2, vocabulary=64, length=16, dropout=0.1, checkpointed=False
    ):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.checkpointed = checkpointed

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(self.norm(x))


def _training_step(model, optimizer, batch, target, loss=functional.cross_entropy) -> Step:
    def step():
        value = loss(model(batch).flatten(0, -2), target.flatten())
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return value.detach()

    return step


def gpt_adamw(checkpointed=False, **options) -> Step:
    torch.manual_seed(0)
    model = GPT(checkpointed=checkpointed)
    ids = torch.randint(0, 64, (4, 16))
    return _training_step(model, torch.optim.AdamW(model.parameters(), **options), ids, ids.roll(-1))


class Residual(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(inplace=True),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        self.skip = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu_(self.body(x) + self.skip(x))


def resnet_sgd() -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        Residual(8, 8, 1), Residual(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    return _training_step(model, optimizer, torch.randn(4, 3, 16, 16), torch.randint(0, 10, (4,)))


def lstm() -> Step:
    torch.manual_seed(0)
    model, head = nn.LSTM(8, 16, num_layers=2, batch_first=True, dropout=0.2), nn.Linear(16, 4)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
    batch, target = torch.randn(4, 12, 8), torch.randint(0, 4, (4, 12))
    return _training_step(lambda x: head(model(x)[0]), optimizer, batch, target)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.middle, self.up2 = nn.Conv2d(8, 8, 3, padding=1), nn.ConvTranspose2d(8, 8, 2, 2)
        self.up1, self.last = nn.ConvTranspose2d(16, 4, 2, 2), nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        one = functional.relu(self.down1(x))
        two = functional.relu(self.down2(functional.max_pool2d(one, 2)))
        x = self.up2(functional.relu(self.middle(functional.max_pool2d(two, 2))))
        x = self.up1(torch.cat([x, two], 1))
        return self.last(torch.cat([x, one], 1)).permute(0, 2, 3, 1)


def unet() -> Step:
    torch.manual_seed(0)
    model = UNet()
    batch, target = torch.randn(2, 1, 16, 16), torch.randint(0, 2, (2, 16, 16))
    return _training_step(model, torch.optim.SGD(model.parameters(), lr=0.1), batch, target)


class Experts(nn.Module):
    def __init__(self, width=16, experts=4):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 32), nn.SiLU(), nn.Linear(32, width)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, rank = torch.where(chosen == number)
            result.index_add_(0, row, expert(x[row]) * weight[row, rank, None])
        return result


def mixture_of_experts() -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), Experts(), nn.Linear(16, 5))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    return _training_step(model, optimizer, torch.randn(24, 8), torch.randint(0, 5, (24,)))


def accumulation_with_clipping() -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = [(torch.randn(6, 8), torch.randint(0, 4, (6,))) for _ in range(3)]

    def step():
        for batch, target in batches:
            (functional.cross_entropy(model(batch), target) / 3).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return norm

    return step


def autocast() -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    batch, target = torch.randn(8, 16), torch.randint(0, 8, (8,))

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(batch), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def paths_efficient(paths=10, width=256) -> Step:
    """Thunder #1337: every path is finished before the next begins."""
    torch.manual_seed(0)
    starts, first = [torch.randn(width, width) for _ in range(paths)], torch.randn(width, width)

    def step():
        a = first
        for t0 in starts:
            t1 = functional.relu(t0)
            t2 = torch.matmul(t1, t1)
            del t1
            t3 = functional.relu(t2)
            del t2
            a = torch.matmul(t3, a)
            del t3
        return a

    return step


def paths_inefficient(paths=10, width=256) -> Step:
    """Thunder #1337: all paths at once, stage by stage."""
    torch.manual_seed(0)
    starts, first = [torch.randn(width, width) for _ in range(paths)], torch.randn(width, width)

    def step():
        a = first
        stage = [functional.relu(t0) for t0 in starts]
        for work in (lambda t: torch.matmul(t, t), functional.relu):
            done = []
            while stage:
                done.append(work(stage.pop()))
            stage = done
        while stage:
            a = torch.matmul(stage.pop(), a)
        return a

    return step


PROGRAMS: dict[str, Callable[[], Step]] = {
    "gpt, AdamW foreach": lambda: gpt_adamw(foreach=True),
    "gpt, AdamW fused": lambda: gpt_adamw(fused=True),
    "gpt, AdamW plain": lambda: gpt_adamw(foreach=False),
    "gpt, checkpointed": lambda: gpt_adamw(checkpointed=True),
    "resnet, BatchNorm, momentum SGD": resnet_sgd,
    "lstm": lstm,
    "u-net": unet,
    "mixture of experts": mixture_of_experts,
    "accumulation and clip_grad_norm": accumulation_with_clipping,
    "autocast bf16": autocast,
}
