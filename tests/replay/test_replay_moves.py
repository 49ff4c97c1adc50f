"""The backend moves tensors that wait for the backward out of memory and back, if `offload` is allowed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memwatch.planner import BudgetError
from memwatch.replay.measure import measure_peak

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

STEPS = 3


class Broken(nn.Module):
    """Layers with dropout, and, on request, a graph break in their middle."""

    def __init__(self, is_broken):
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.1)) for _ in range(4)]
        self.first, self.second = nn.Sequential(*layers[:2]), nn.Sequential(*layers[2:])
        self.is_broken = is_broken

    def forward(self, x):
        x = self.first(x)
        if self.is_broken:
            torch._dynamo.graph_break()
        return self.second(x)


def trained(model, call, x):
    """Run one step; return the loss and the gradients."""
    torch.manual_seed(1)
    model.zero_grad()
    loss = call(x).square().mean()
    loss.backward()
    return [loss.detach(), *(each.grad.clone() for each in model.parameters())]


def peak(model, call, x):
    """Return the peak increase of a step, by the allocator's events."""
    model.zero_grad()
    with measure_peak("cpu") as measured:
        call(x).square().mean().backward()
    return measured.peak_increase_bytes


@pytest.mark.parametrize("is_broken", [False, True])
def test_moved_buffers_keep_a_budget_that_nothing_else_reaches(is_broken):
    """Without recompute only moves help: the measured peak is within the budget, and results are bitwise eager's."""
    model, x = Broken(is_broken), torch.randn(256, 32)
    wanted, eager_bytes = trained(model, model, x), peak(model, model, x)
    budget = eager_bytes // 2
    options = {"budget": budget, "recompute": False, "offload": True, "strict": True, "time_limit_s": 2.0}
    call = torch.compile(model, backend="memwatch", options=options)
    for _ in range(STEPS):
        assert all(map(torch.equal, trained(model, call, x), wanted))
    assert peak(model, call, x) <= budget


def test_without_moves_the_error_advises_them():
    """The same budget is refused without the option, and the message names it."""
    model, x = Broken(is_broken=False), torch.randn(256, 32)
    options = {"budget": "50%", "recompute": False, "strict": True, "time_limit_s": 2.0}
    call = torch.compile(model, backend="memwatch", options=options)
    with pytest.raises(BudgetError, match="offload"):
        trained(model, call, x)
