"""A training program of a model of Llama 3 70B's sizes under FSDP2: each block is checkpointed.

Nothing in it is about memwatch: `torchrun` would run it on real ranks.
"""

import argparse
import functools

import torch
from torch import distributed, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F  # noqa: N812  # torch's own convention
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, GROUPS, HIDDEN, WORDS = 8192, 64, 8, 28672, 128256


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self) -> None:
        super().__init__()
        self.size = WIDTH // HEADS
        self.q, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(WIDTH, GROUPS * self.size, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        """Return what each token attends to."""
        q, k, v = (
            part(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        q, k = (torch.cat((-y[..., 1::2], y[..., ::2]), -1) * turn + y for y in (q, k))
        k, v = (y.repeat_interleave(HEADS // GROUPS, dim=1) for y in (k, v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A block: attention, then a gated feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = (nn.RMSNorm(WIDTH) for _ in range(2))
        self.attention = Attention()
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        """Return the stream after the block."""
        x = x + self.attention(self.norm_1(x), turn)
        normed = self.norm_2(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Model(nn.Module):
    """Embedding, blocks, head."""

    def __init__(self, layers: int, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.register_buffer("turn", torch.zeros(tokens, WIDTH // HEADS, dtype=torch.bfloat16))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = self.embedding(words)
        for block in self.blocks:
            x = checkpoint(block, x, self.turn, use_reentrant=False)
        return self.head(self.norm(x))


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--tokens", type=int, default=8192)
    options = parser.parse_args()
    distributed.init_process_group("gloo")
    with torch.device("meta"):  # no rank ever holds the whole model
        model = Model(options.layers, options.tokens)
    shard = functools.partial(fully_shard, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    for block in model.blocks:
        shard(block)
    shard(model)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(3):
        words = torch.randint(WORDS, (1, options.tokens + 1))
        loss = F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())


main()
