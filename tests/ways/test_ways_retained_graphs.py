"""Checkpoints where several backwards run over one graph: the forward runs again in each of them."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from ways import run_lines

import memwatch


class _TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 64)
        )
        self.left = nn.Sequential(
            nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)
        )
        self.right = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, x):
        hidden = self.trunk(x)
        return self.left(hidden), self.right(hidden)


class _Training:
    def __init__(self, *, retain):
        gc.collect()
        torch.manual_seed(0)
        self.model = _TwoHeads()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.retain = retain


def _recorded(training):
    """Train on two losses. `retain` is what the last backward does."""
    with memwatch.profile(holders=False) as prof:
        for _ in range(3):
            left, right = training.model(torch.randn(2_048, 64))
            left_loss, right_loss = left.square().mean(), right.square().mean()
            training.optimizer.zero_grad()
            left_loss.backward(retain_graph=True)
            right_loss.backward(retain_graph=training.retain)
            training.optimizer.step()
    return prof


@pytest.mark.parametrize("retain", [True, False])
def test_a_checkpoint_frees_what_each_backward_has_read(retain):
    """The graph of the step before is alive in the next forward, but not the tensors inside the checkpoints."""
    found = [way for way in _recorded(_Training(retain=retain)).ways.itertuples() if way.kind == "checkpoint"]
    assert found
    for way in found:
        changed = _Training(retain=retain)
        run_lines(way.lines, training=changed)
        assert _recorded(changed).peak_bytes == pytest.approx(way.peak_bytes, rel=0.001)
        del changed


def _penalised(lines=""):
    """Train with a gradient penalty. The result of the last layer goes with the function, before the backward."""
    gc.collect()
    torch.manual_seed(0)
    hidden = [nn.Linear(512, 512), nn.LeakyReLU(), nn.Linear(512, 256), nn.LeakyReLU()]
    model = nn.Sequential(*hidden, nn.Linear(256, 1))
    run_lines(lines, model=model)

    def penalty(x):
        result = model(x)
        (gradient,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        return (gradient.norm(dim=1) - 1).square().mean()

    with memwatch.profile(holders=False) as prof:
        for _ in range(2):
            real, fake = torch.randn(1_024, 512), torch.randn(1_024, 512)
            loss = model(real).mean() - model(fake).mean()
            loss = loss + penalty((real + fake).requires_grad_())
            model.zero_grad()
            loss.backward()
    return prof


def test_a_checkpoint_spares_nothing_that_is_gone_before_the_backward():
    """The penalty does not need the inputs of the last layer, and its gradient is computed before."""
    found = [way for way in _penalised().ways.itertuples() if way.kind == "checkpoint"]
    assert found
    for way in found:
        assert _penalised(way.lines).peak_bytes == pytest.approx(way.peak_bytes, rel=0.005)
