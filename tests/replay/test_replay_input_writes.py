"""Writes of a compiled step outside autograd take no more memory than torch's own, and happen once, in time."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from memwatch.replay.measure import measure_peak

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Contrast(nn.Module):
    """An encoder, a copy of it that follows by momentum, and a queue of the copy's results."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        self.follower = copy.deepcopy(self.encoder).requires_grad_(requires_grad=False)
        self.register_buffer("queue", torch.randn(32, 512))

    def forward(self, x):
        query = functional.normalize(self.encoder(x), dim=1)
        with torch.no_grad():
            for new, old in zip(self.encoder.parameters(), self.follower.parameters(), strict=True):
                old.mul_(0.9).add_(new, alpha=0.1)
            key = functional.normalize(self.follower(x), dim=1)
        scores = query @ self.queue.clone().detach()
        with torch.no_grad():
            self.queue[:, : len(x)] = key.T
        return torch.cat([(query * key).sum(1, keepdim=True), scores], 1)


class Normed(nn.Module):
    """Convolutions with batch norms."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(5))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(5))

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = functional.relu(norm(conv(x)))
        return x


class OneNorm(Normed):
    """Convolutions that share a batch norm."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([self.norms[0]] * 5)


IMAGES, ROWS = (4, 8, 16, 16), (32, 32)


def both_sides(call):
    """Use it twice before the backward, as contrastive training does."""
    return lambda x: call(x) - call(0.5 * x.flip(0))


def step(model, call, x):
    """Run one step; return the loss, the gradients, and the forward's writes before and after the backward."""
    model.zero_grad()
    loss = call(x).square().mean()
    written = [each.clone() for each in (*model.buffers(), *model.parameters())]
    loss.backward()
    after = [each.clone() for each in model.buffers()]
    gradients = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    return [loss.detach(), *written, *after, *gradients]


def peak_of(model, call, x):
    model.zero_grad()
    with measure_peak("cpu") as measured:
        call(x).square().mean().backward()
    return measured.peak_increase_bytes


@pytest.mark.parametrize(
    ("build", "shape", "use", "share"),
    [
        (Contrast, ROWS, lambda call: call, 100),
        (OneNorm, IMAGES, lambda call: call, 55),
        (Normed, IMAGES, both_sides, 60),
    ],
)
def test_inputs_are_written_as_by_eager_pytorch(build, shape, use, share):
    """Batch norms are computed again without being counted twice; a copy is made before its source changes."""
    torch.manual_seed(0)
    model = build()
    x = torch.randn(shape)
    plain = copy.deepcopy(model)
    allowed = peak_of(plain, use(plain), x) * share // 100
    plain = copy.deepcopy(model)
    options = {"budget": f"{share}%", "strict": True, "time_limit_s": 2.0}
    planned = torch.compile(model, backend="memwatch", options=options)
    for _ in range(4):
        wanted = step(plain, use(plain), x)
        found = step(model, use(planned), x)
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert peak_of(model, use(planned), x) <= allowed


def test_a_copy_of_what_is_written_is_not_made_again():
    """The backward would read the later content of the queue."""
    torch.manual_seed(0)
    model = Contrast()
    plain, x = copy.deepcopy(model), torch.randn(ROWS)
    planned = torch.compile(model, backend="memwatch", options={"budget": "1 KiB", "time_limit_s": 2.0})
    with pytest.warns(UserWarning, match="no plan fits"):
        found = step(model, planned, x)
    for _ in range(3):
        wanted = step(plain, plain, x)
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
        found = step(model, planned, x)
