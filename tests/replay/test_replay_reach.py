"""The backend accepts every budget that a plan can keep.

A share refers to the peak of eager PyTorch, to the byte.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from memwatch.replay.measure import measure_peak

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def step(model, call, x):
    """Run one step; return the loss and the gradients."""
    model.zero_grad()
    loss = call(x).square().mean()
    loss.backward()
    return [loss.detach(), *(each.grad.clone() for each in model.parameters())]


def peak_of(model, call, x):
    model.zero_grad()
    with measure_peak("cpu") as measured:
        call(x).square().mean().backward()
    return measured.peak_increase_bytes


def assert_reaches(model, x, share):
    """Check that a share of eager PyTorch's peak is kept, with its results."""
    allowed, wanted = peak_of(model, model, x) * share // 100, step(model, model, x)
    options = {"time_limit_s": 2.0, "strict": True, "budget": f"{share}%"}
    planned = torch.compile(model, backend="memwatch", options=options)
    for _ in range(3):
        assert all(map(torch.equal, step(model, planned, x), wanted))
    assert peak_of(model, planned, x) <= allowed


class Swish(torch.autograd.Function):
    """An activation with a backward of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        gate = x.sigmoid()
        return gradient * (gate + x * gate * (1 - gate))


class Swishes(nn.Module):
    """Layers with that activation."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(96, 96) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = Swish.apply(layer(x))
        return x


class Broken(nn.Module):
    """Twelve layers with a graph break in the middle."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (
            nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(6))) for _ in range(2)
        )

    def forward(self, x):
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


class Images(nn.Module):
    """A level down and up, with a skip: the backward of a convolution is the peak."""

    def __init__(self):
        super().__init__()
        self.down, self.middle = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, x):
        wide = functional.relu(self.down(x))
        x = self.up(functional.relu(self.middle(functional.max_pool2d(wide, 2))))
        return self.last(torch.cat([x, wide], 1))


def test_what_the_cut_into_graphs_adds_leads_to_another_plan():
    """A plan that takes more once it is cut was made again and again, a few bytes lower each time, then refused."""
    assert_reaches(Swishes(), torch.randn(256, 96), 50)


def test_a_share_is_not_of_what_is_compiled_meanwhile():
    """The second graph is compiled while eager PyTorch is measured."""
    assert_reaches(Broken(), torch.randn(256, 32), 50)


def test_gradients_of_weights_and_of_the_input_may_come_one_after_the_other():
    """The backward of a convolution makes both at once, with the workspace of both."""
    torch.manual_seed(0)
    # otherwise one op alone needs 65.3 % of eager PyTorch's peak
    share = 65 if torch.cpu._is_avx512_supported() else 66
    assert_reaches(Images(), torch.randn(2, 1, 32, 32), share)


class Averaged(nn.Module):
    """A batch norm that averages: dynamo leaves it to eager PyTorch, between two graphs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.average, self.norm = nn.BatchNorm2d(8, momentum=None), nn.BatchNorm2d(8, affine=False)

    def forward(self, x):
        return self.norm(self.norm(self.second(torch.relu(self.average(self.first(x))))))


def test_what_stays_between_two_graphs_is_planned_for():
    """Tensors that eager PyTorch keeps there for its backward are alive while the second graph runs."""
    torch.manual_seed(0)
    assert_reaches(Averaged(), torch.randn(4, 3, 20, 20), 92)
