"""Under the backend a step is eager PyTorch's bit by bit, also where torch's own compiler rounds otherwise."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from memwatch.replay.measure import measure_peak


class Checkpointed(nn.Module):
    """A layer with dropout in a checkpointed region."""

    def __init__(self):
        super().__init__()
        self.layer = Layer(dropping(0.1))

    def forward(self, x):
        """Map images to images."""
        return checkpoint(self.layer, x, use_reentrant=False)


class Layer(nn.Module):
    """A convolution, and a function after it."""

    def __init__(self, function, width=8):
        super().__init__()
        self.conv, self.function = nn.Conv2d(width, width, 3, padding=1), function

    def forward(self, x):
        """Map images to images."""
        return self.function(functional.gelu(self.conv(x)))


def dropping(p):
    """Return dropout of places, and of places that are not contiguous."""
    return lambda x: functional.dropout(functional.dropout(x, p).transpose(1, 2), p).transpose(1, 2)


def attention(x):
    """Mix the rows of images, with dropout."""
    return functional.scaled_dot_product_attention(x, x, x, dropout_p=0.15)


def larger(mode):
    """Return a function that makes images larger, and smaller again."""
    return lambda x: functional.avg_pool2d(functional.interpolate(x, scale_factor=2, mode=mode), 2)


def results(model, call, x, dtype):
    """Run a step from the same random numbers; return loss and gradients."""
    torch.manual_seed(1)
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
        loss = call(x).float().square().mean()
    loss.backward()
    return [loss.detach(), *(each.grad for each in model.parameters())]


class LargerLast(nn.Module):
    """A product over the channels, and larger images in channels-last layout, as attention produces them."""

    def __init__(self, mode):
        super().__init__()
        self.one, self.three, self.mode = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1), mode

    def forward(self, x):
        """Map images to images of twice the size."""
        x = self.one(x)
        x = x.flatten(2).transpose(1, 2).contiguous().transpose(1, 2).view_as(x)
        return self.three(functional.interpolate(x, scale_factor=2, mode=self.mode))


@pytest.mark.parametrize("budget", ["100%", "70%"])
@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        pytest.param(dropping(0.15), torch.float32, id="dropout"),
        pytest.param(dropping(0.1), torch.bfloat16, id="dropout, bfloat16"),
        pytest.param(attention, torch.float32, id="attention with dropout"),
        pytest.param(larger("bilinear"), torch.float32, id="bilinear"),
        pytest.param(larger("bicubic"), torch.float32, id="bicubic"),
    ],
)
def test_a_step_is_that_of_eager_pytorch(function, dtype, budget):
    """The first step is measured in eager PyTorch; those after it run as planned, and give the same."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(function) for _ in range(3)))
    x = torch.randn(2, 8, 16, 16)
    wanted = [each.clone() for each in results(model, model, x, dtype)]
    compiled = torch.compile(model, backend="memwatch", options={"budget": budget, "time_limit_s": 2.0})
    for _ in range(3):
        assert all(map(torch.equal, results(model, compiled, x, dtype), wanted))


def scaled(x):
    """Divide by the root of a size."""
    return functional.gelu(x / x.shape[3] ** 0.5)


@pytest.mark.parametrize("place", [2, 3])
@pytest.mark.parametrize("function", [attention, scaled])
def test_numbers_that_are_made_of_a_symbolic_size_reach_the_backward(function, place):
    """The forward passes other values than tensors unchanged: the root of a head's size is not an integer."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(function) for _ in range(2)))
    compiled = torch.compile(model, backend="memwatch", options={"budget": "70%", "time_limit_s": 2.0})
    for size in (16, 12, 16):
        x = torch.randn(2, 8, *(size if axis == place else 16 for axis in (2, 3)))
        torch._dynamo.maybe_mark_dynamic(x, place)
        wanted = [each.clone() for each in results(model, model, x, torch.float32)]
        for _ in range(2):
            assert all(map(torch.equal, results(model, compiled, x, torch.float32), wanted))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_gradients_lie_in_memory_as_those_of_eager_pytorch(mode):
    """Sums over a channels-last gradient are rounded in that order, and the gradient of a bias shows it."""
    torch.manual_seed(0)
    model, x = nn.Sequential(LargerLast(mode), LargerLast(mode)), torch.randn(2, 8, 16, 16)
    wanted = [each.clone() for each in results(model, model, x, torch.float32)]
    compiled = torch.compile(model, backend="memwatch", options={"budget": "100%"})
    for _ in range(2):
        assert all(map(torch.equal, results(model, compiled, x, torch.float32), wanted))


def test_a_checkpointed_region_drops_the_same_places_again():
    """The first step, which is measured in eager PyTorch, and those after it have the gradients of eager PyTorch."""
    torch.manual_seed(0)
    model, x = nn.Sequential(*(Checkpointed() for _ in range(3))), torch.randn(2, 8, 16, 16)
    wanted = [each.clone() for each in results(model, model, x, torch.float32)]
    compiled = torch.compile(model, backend="memwatch", options={"budget": "100%"})
    for _ in range(2):
        assert all(map(torch.equal, results(model, compiled, x, torch.float32), wanted))


@pytest.mark.parametrize("zeroes_in_step", [True, False])
def test_a_whole_step_may_be_compiled(zeroes_in_step):
    """A compiled function calls backward and the optimizer: the parameters equal eager PyTorch's, in every bit.

    torch compiles forward and update separately. If the function begins with `zero_grad`, it compiles the update
    alone.
    """
    x, trained = torch.randn(64, 32), []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(
            *(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(3))
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(model=model, optimizer=optimizer):
            if zeroes_in_step:
                optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        run = torch.compile(step, backend="memwatch", options={"budget": "70%"}) if is_compiled else step
        for _ in range(4):
            run()
            if not zeroes_in_step:
                optimizer.zero_grad()
        trained.append(list(model.parameters()))
    assert all(map(torch.equal, *trained))


def test_a_budget_of_a_whole_step_is_kept_beside_the_gradients():
    """The optimizer's step runs beside the gradients; they are not taken off the share of forward and backward."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4))
    )
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(256, 64)

    def step():
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()

    def peak_of(run):
        run()
        optimizer.zero_grad()
        with measure_peak("cpu") as measured:
            run()
        optimizer.zero_grad()
        return measured.peak_increase_bytes

    compiled = torch.compile(
        step, backend="memwatch", options={"budget": "60%", "strict": True, "time_limit_s": 2.0}
    )
    for _ in range(4):
        compiled()
        optimizer.zero_grad()
    share = peak_of(compiled) / peak_of(step)
    assert 0.5 < share <= 0.6
