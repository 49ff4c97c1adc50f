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


@pytest.mark.parametrize("keep", [True, False])
def test_graphs_of_earlier_steps_are_found_at_a_peak_within_a_backward(keep):
    """Each step keeps its loss and retains its graph: while the next backward runs, nothing needs the older graphs."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train():
        losses = []
        for _ in range(6):
            loss = model(torch.randn(512, 256)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward(retain_graph=keep)
            optimizer.step()
            losses.append(loss if keep else loss.item())
            del loss

    with memwatch.profile() as prof:
        train()
    found = [finding for finding in prof.findings if finding.kind == "retained"]
    assert bool(found) is keep
    if keep:
        assert found[0].nbytes >= 5 * 4 * 512 * 256 * 4, "five graphs of four saved inputs each"
        assert "`losses`" in found[0].holder


def test_the_graph_of_a_penalty_on_gradients_is_needed():
    """The backward that computes the penalty keeps its graph for the one after it."""
    torch.manual_seed(0)
    model = nn.Sequential(*[each for _ in range(4) for each in (nn.Linear(256, 256), nn.Tanh())])

    def train():
        for _ in range(3):
            x = torch.randn(512, 256, requires_grad=True)
            (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            gradient.square().mean().backward()

    with memwatch.profile() as prof:
        train()
    assert "retained" not in [finding.kind for finding in prof.findings]
