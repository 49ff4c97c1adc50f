"""Programs whose kernels take memory beside tensors, to compare estimates with real peaks: `step` by name."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional
from workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable


def trained(net: nn.Module, *size: int) -> Callable[[], None]:
    """Return a training step of a network on one batch."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    batch = torch.ones(size)

    def step() -> None:
        optimizer.zero_grad()
        made = net(batch)
        (made[0] if isinstance(made, tuple) else made).mean().backward()
        optimizer.step()

    return step


def large_convolutions() -> Callable[[], None]:
    """Return a step whose ops are too large to be tried at their sizes."""
    convolutions = nn.Conv2d(3, 128, 3, padding=1), nn.Conv2d(128, 256, 3, padding=1)
    return trained(nn.Sequential(*convolutions, nn.BatchNorm2d(256), nn.ReLU()), 4, 3, 128, 128)


def transformer() -> Callable[[], None]:
    """Return a step of an encoder layer."""
    return trained(nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True), 8, 256, 256)


def recurrent() -> Callable[[], None]:
    """Return a step of two layers of an LSTM."""
    return trained(nn.LSTM(128, 256, 2), 64, 16, 128)


class Ranking(nn.Module):
    """Sorts, sums up and picks what is large."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(512, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one number for each row."""
        scores = self.scale(x)
        ordered = scores.sort(dim=1, descending=True).values.cumsum(1)
        return ordered.topk(16, dim=1).values.sum(1) + functional.layer_norm(scores, (512,)).logsumexp(1)


def ranking() -> Callable[[], None]:
    """Return a step of sorts and sums."""
    return trained(Ranking(), 2048, 512)


def half_precision() -> Callable[[], None]:
    """Return a step in bfloat16."""
    layers = [nn.Linear(1024, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 1024)]
    net, batch = nn.Sequential(*layers).bfloat16(), torch.ones(1024, 1024, dtype=torch.bfloat16)
    return lambda: net(batch).float().square().mean().backward()


PROGRAMS = {
    **WORKLOADS,
    "large convolutions": large_convolutions,
    "transformer": transformer,
    "LSTM": recurrent,
    "sorts and sums": ranking,
    "bfloat16": half_precision,
}


def main(name: str) -> None:
    """Make a program and run three steps of it."""
    step = PROGRAMS[name]()
    for _ in range(3):
        step()


if __name__ == "__main__":
    main(sys.argv[1])
