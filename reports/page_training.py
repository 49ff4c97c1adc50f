"""The program that the pictures of the pages show: a small GPT, trained by one process or by ranks of a gloo group.

`reports/page_pictures.py` copies it as `train.py`, and runs it there.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import memwatch

WIDTH, VOCABULARY, LENGTH = 32, 64, 32
LAYER = {
    "nhead": 2,
    "dim_feedforward": 4 * WIDTH,
    "batch_first": True,
    "norm_first": True,
    "activation": "gelu",
}


class GPT(nn.Module):
    """Two blocks over characters."""

    def __init__(self) -> None:
        """Make two blocks."""
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(WIDTH, **LAYER) for _ in range(2)])
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Training:
    """A loop that keeps the logits of every step, as a careless one does."""

    def __init__(self, batch: int) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = GPT()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.logits: list[torch.Tensor] = []
        self.batch = batch

    def step(self, *, keep: bool = True) -> None:
        """Train one step."""
        tokens = torch.randint(0, VOCABULARY, (self.batch, LENGTH))
        logits = self.model(tokens)
        if keep:
            self.logits.append(logits)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def record(self, steps: int, **options: bool) -> memwatch.Profile:
        """Return what some steps did."""
        with memwatch.profile(**options) as prof:
            for _ in range(steps):
                self.step()
                prof.step()
        return prof


def leaks_of_a_step() -> list[memwatch.Leak]:
    """Return what each further step of a training keeps."""
    training = Training(4)
    training.step()
    return memwatch.find_leaks(training.step)


def train_as_rank(rank: int, ranks: int, steps: int) -> None:
    """Train as one rank; rank 0 alone keeps its logits, and the last one has a larger batch."""
    # torch takes the path of `file://./group` to be /group, which every run on this machine would share
    dist.init_process_group("gloo", store=dist.FileStore("group", ranks), rank=rank, world_size=ranks)
    training = Training(6 if rank == ranks - 1 else 4)
    training.model = DistributedDataParallel(training.model)
    with memwatch.profile(f"train.rank{rank}.memwatch") as prof:
        for _ in range(steps):
            training.step(keep=rank == 0)
            prof.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    train_as_rank(*map(int, sys.argv[1:]))
