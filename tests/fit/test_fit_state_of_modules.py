"""fit() of models with state: a way that computes again keeps the results, or is not tried."""

from __future__ import annotations

import fit_programs
import pytest
import torch
from torch import nn

import memwatch


class Running(nn.Module):
    """Divides by a running size, which each call updates."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32))
        self.register_buffer("size", torch.ones(32))

    def forward(self, x):
        with torch.no_grad():
            self.size.mul_(0.5).add_(x.square().mean(0), alpha=0.5)
        return x + self.layers(x / self.size.sqrt().clone())


def model_and_step(make_block, count=4):
    """Return a model of some blocks, and a function that trains it for one step and returns the loss."""
    torch.manual_seed(0)
    model = nn.Sequential(*(make_block() for _ in range(count)), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(2000, 32)

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return model, step


def test_a_checkpoint_of_modules_that_read_their_running_buffers_keeps_the_results():
    model, step = model_and_step(Running)
    limit = int(fit_programs.peak_of(step) * 0.7)
    fit = memwatch.fit(step, model, limit, ways=("checkpoint",), quiet=True)
    kept = fit.ways[fit.ways["kept"]].iloc[0]
    assert "FormerBuffers" in fit.code
    assert kept["bitwise"] == "yes"
    fit.undo()


class Annealing(nn.Module):
    """Divides by a temperature that falls with each call."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + self.layers(x / 0.9**self.calls)


def test_modules_that_count_their_calls_are_not_checkpointed_but_their_parts_are():
    model, step = model_and_step(Annealing)
    limit = int(fit_programs.peak_of(step) * 0.8)
    fit = memwatch.fit(step, model, limit, ways=("checkpoint",), quiet=True)
    kept = fit.ways[fit.ways["kept"]].iloc[0]
    assert kept["bitwise"] == "yes"
    checkpointed = {name for name, _ in model.named_modules() if repr(name) in fit.code}
    assert checkpointed
    assert checkpointed <= {f"{number}.layers" for number in range(4)}
    assert any("`calls`" in note for note in fit.notes)
    fit.undo()


def flat(norm):
    """Return a chain of small layers, whose tensors are saved between them."""
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(32, 32), norm(32))))


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.LayerNorm])
def test_a_chain_is_not_tried_if_it_would_update_its_buffers_twice(norm):
    """A chain with layer norms, which have no buffers, is tried."""
    model, step = model_and_step(lambda: flat(norm), count=1)
    limit = fit_programs.peak_of(step) // 10
    with pytest.raises(memwatch.BudgetError) as raised:
        memwatch.fit(step, model, limit, ways=("chain",), quiet=True)
    assert bool(raised.value.best.way.changes) == (norm is nn.LayerNorm)
