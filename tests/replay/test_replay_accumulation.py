"""The budget holds for a step of several micro-batches: the gradients that the step makes are in it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memwatch.planner import BudgetError
from memwatch.replay.measure import measure_peak

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

ROWS, WIDTH = 96, 48


class Training:
    """Steps of some micro-batches, each with its optimizer; made twice it is the same."""

    def __init__(self, *, set_to_none=True):
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(5)))
        self.call = self.model
        self.batches = torch.randn(4, ROWS, WIDTH)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.set_to_none = set_to_none

    def compiled(self, budget):
        options = {"time_limit_s": 2.0, "strict": True, "budget": budget}
        self.call = torch.compile(self.model, backend="memwatch", options=options)
        return self

    def gradients(self, count):
        """Run the micro-batches of a step."""
        self.optimizer.zero_grad(set_to_none=self.set_to_none)
        for x in self.batches[:count]:
            self.call(x).square().mean().backward()

    def step(self, count):
        """Run a step; return the gradients."""
        self.gradients(count)
        found = [each.grad.clone() for each in self.model.parameters()]
        self.optimizer.step()
        return found

    def peak(self, count):
        """Run a step; return its peak increase from its beginning to its last backward."""
        with measure_peak("cpu") as measured:
            self.gradients(count)
        self.optimizer.step()
        return measured.peak_increase_bytes


@pytest.mark.parametrize(("count", "set_to_none"), [(2, True), (4, False), (1, False)])
def test_micro_batches_keep_the_budget(count, set_to_none):
    """A share is of the whole step, and bytes hold for it, whether gradients are freed or set to zero."""
    eager = Training(set_to_none=set_to_none)
    wanted = [eager.step(count) for _ in range(5)]
    allowed = eager.peak(count) * 75 // 100
    for budget in ("75%", allowed):
        planned = Training(set_to_none=set_to_none).compiled(budget)
        for gradients in wanted:
            assert all(map(torch.equal, planned.step(count), gradients))
        assert planned.peak(count) <= allowed
        torch._dynamo.reset()


@pytest.mark.parametrize("as_bytes", [False, True])
def test_the_first_step_of_micro_batches_after_others_is_noticed(as_bytes):
    """A training that has settled begins to accumulate gradients: it is planned again."""
    eager = Training()
    allowed = eager.peak(3) * 75 // 100
    planned = Training().compiled(allowed if as_bytes else "75%")
    for _ in range(6):
        planned.step(1)
    for _ in range(3):
        planned.step(3)
    assert planned.peak(3) <= allowed


def test_gradients_that_leave_too_little_are_named_and_steps_without_them_go_on():
    """The second micro-batch is refused where it begins; a step of one is not."""
    eager = Training()
    wanted = [eager.step(1) for _ in range(2)]
    planned = Training().compiled(eager.peak(1) * 45 // 100)
    assert all(map(torch.equal, planned.step(1), wanted[0]))
    with pytest.raises(BudgetError, match=r"gradients of the step's earlier backwards take 45.*KiB of"):
        planned.gradients(2)
    assert all(map(torch.equal, planned.step(1), wanted[1]))
