"""Graphs that a backward retained: the peak that the finding promises is that of the mended program."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import memwatch

_ROWS = 2_048


class _TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.left = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1))
        self.right = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, x):
        hidden = self.trunk(x)
        return self.left(hidden), self.right(hidden)


def _recorded(*, retain):
    """Train on two losses, whose graphs share the trunk; `retain` is what the last backward does."""
    gc.collect()
    torch.manual_seed(0)
    model = _TwoHeads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with memwatch.profile() as prof:
        for _ in range(3):
            left, right = model(torch.randn(_ROWS, 64))
            left_loss, right_loss = left.square().mean(), right.square().mean()
            optimizer.zero_grad()
            left_loss.backward(retain_graph=True)
            right_loss.backward(retain_graph=retain)
            optimizer.step()
    return prof


def test_of_several_losses_the_last_backward_frees_what_the_finding_says():
    """The first backward must retain the graph of the trunk, and with it all of its own head."""
    (found,) = (each for each in _recorded(retain=True).findings if each.kind == "retained")
    assert "the last backward() of the step without retain_graph=True" in found.advice
    assert found.predicted_peak_bytes == pytest.approx(_recorded(retain=False).peak_bytes, rel=0.001)


def test_a_graph_that_an_earlier_loss_must_retain_is_no_finding():
    """The last backward frees what it can; the head of the first loss waits for its variable."""
    assert not [each for each in _recorded(retain=False).findings if each.kind == "retained"]
