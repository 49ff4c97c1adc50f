"""Ways that only an accelerator has: its saved tensors can wait on the host."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import memwatch

DEVICE = "pretend:0"


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x):
        return x + self.down(torch.sigmoid(self.up(self.norm(x))))


def made(lines=""):
    """Return a step of a model of six blocks, changed by some lines, after its first run."""
    torch.manual_seed(0)
    gc.collect()
    model = nn.Sequential(*(Block(64) for _ in range(6))).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(512, 64).to(DEVICE)
    space = {"model": model}
    exec(lines, space)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()
    return model, step


def recorded(step):
    with memwatch.profile(holders=False) as prof:
        step()
        step()
    return prof.on(DEVICE)


def test_saved_tensors_on_the_host_give_the_promised_peak():
    """The lines copy them there, and back when the backward reads them; the results are the same."""
    model, step = made()
    prof = recorded(step)
    (way,) = (way for way in prof.ways.itertuples() if way.kind == "offload")
    assert way.basis == "simulated"
    assert "host" in way.decision
    values = [parameter.detach().to("cpu") for parameter in model.parameters()]
    peak_bytes = prof.peak_bytes
    del model, step, prof
    model, step = made(way.lines)
    after = recorded(step)
    assert after.peak_bytes == pytest.approx(way.peak_bytes, rel=0.02)
    assert after.peak_bytes < 0.75 * peak_bytes
    assert all(
        torch.equal(one, other.to("cpu")) for one, other in zip(values, model.parameters(), strict=True)
    )


def test_a_program_without_backward_has_nothing_to_keep_on_the_host():
    model, _ = made()
    x = torch.randn(512, 64).to(DEVICE)

    def evaluate():
        with torch.no_grad():
            model(x)

    assert "offload" not in set(recorded(evaluate).ways["kind"])
