"""What looking for holders adds to a block: programs whose ops are so cheap that it shows, and how it is measured.

Used by `side_by_side.py`, which runs it with two commits in turn.
"""

from __future__ import annotations

import cProfile
import gc
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from workloads import GPT, gpt, mlp

import memwatch
from memwatch.record.holders.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Callable

PAIRS = 16
"""Blocks without and with holders in a process, in turn, after a first pair that warms up."""
_TENSORS, _OBJECTS = 20_000, 200_000


class _Attention(nn.Module):
    """An attention that keeps the keys and values of all tokens so far, and replaces them at each token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.keys = self.values = torch.empty(1, 0, width)

    def forward(self, x: Tensor) -> Tensor:
        """Run it for one token."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        self.keys, self.values = torch.cat([self.keys, k], 1), torch.cat([self.values, v], 1)
        weights = (q @ self.keys.transpose(1, 2)).softmax(-1)
        return x + self.out(weights @ self.values)


def _small_gpt() -> Callable[[], None]:
    """Return five training steps of a GPT of width 32."""
    torch.manual_seed(0)
    model = GPT(vocabulary=64, width=32, layers=4, heads=2, length=16)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tokens = torch.randint(0, 64, (2, 16))

    def step() -> None:
        optimizer.zero_grad()
        model(tokens).pow(2).mean().backward()
        optimizer.step()

    return _times(5, step)


def _generate() -> Callable[[], None]:
    """Return the making of 40 tokens by four layers, with a cache of keys and values."""
    torch.manual_seed(0)
    layers = nn.Sequential(*[_Attention(64) for _ in range(4)])

    @torch.no_grad()
    def generate() -> None:
        for layer in layers:
            layer.keys = layer.values = torch.empty(1, 0, 64)
        x = torch.randn(1, 1, 64)
        for _ in range(40):
            x = layers(x)

    return generate


def _beside_many() -> Callable[[], None]:
    """Return twenty steps of the MLP beside many live tensors and objects."""
    step = mlp()
    held = [torch.empty(4) for _ in range(_TENSORS)], [{"at": [place]} for place in range(_OBJECTS)]

    def run() -> None:
        for _ in range(20):
            step()
        assert held

    return run


def _times(count: int, step: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(count):
            step()

    return run


PROGRAMS: dict[str, Callable[[], Callable[[], None]]] = {
    "MLP, 20 steps": lambda: _times(20, mlp()),
    "small GPT, 5 steps": _small_gpt,
    "GPT, 1 step": lambda: _times(1, gpt()),
    "MLP beside 20,000 tensors and 200,000 objects": _beside_many,
    "generate 40 tokens, KV cache": _generate,
}


def _timed_samples() -> list[float]:
    """Return a list to which every sample appends the CPU seconds that it took from now on."""
    taken: list[float] = []
    take = Sample.take

    def timed(*arguments: Any) -> None:
        start = time.thread_time()
        take(*arguments)
        taken.append(time.thread_time() - start)

    Sample.take = timed
    return taken


def calls(program: str) -> dict[str, float]:
    """Count the functions of Python that a block calls for the sake of holders in this process."""
    run = PROGRAMS[program]()
    run()
    counts = {}
    for holders in (False, True, False, True):  # the second pair counts
        gc.collect()
        profiler = cProfile.Profile(builtins=False)
        with memwatch.profile(holders=holders):
            profiler.enable()
            run()
            profiler.disable()
        counts[holders] = sum(entry.callcount for entry in profiler.getstats())
    return {"added_calls": counts[True] - counts[False]}


def sample(program: str) -> dict[str, float]:
    """Measure blocks without and with holders in this process; give the least times and what the samples took."""
    run = PROGRAMS[program]()
    run()
    taken = _timed_samples()
    least = {False: float("inf"), True: float("inf")}
    samples, samples_s = 0, float("inf")
    for pair in range(PAIRS + 1):
        for holders in (False, True):
            gc.collect()
            taken.clear()
            with memwatch.profile(holders=holders):
                start = time.thread_time()
                run()
                took_s = time.thread_time() - start
            if pair:
                least[holders] = min(least[holders], took_s)
            if pair and holders:
                samples, samples_s = len(taken), min(samples_s, sum(taken))
    return {
        "without_holders_ms": least[False] * 1e3,
        "with_holders_ms": least[True] * 1e3,
        "samples_ms": samples_s * 1e3,
        "samples": samples,
    }
