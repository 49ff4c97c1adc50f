"""Ways for modules that call a custom autograd function.

Autograd makes a node for the call of the function. None of the ops in its forward has the number of this node.
"""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import memwatch


class _SiLU(torch.autograd.Function):
    """Saves its input alone, and computes its sigmoid again."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        sigmoid = torch.sigmoid(x)
        return gradient * (sigmoid * (1 + x * (1 - sigmoid)))


class _Block(nn.Module):
    def __init__(self, *, ends_with_it):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)
        self.ends_with_it = ends_with_it

    def forward(self, x):
        if self.ends_with_it:
            return _SiLU.apply(self.down(_SiLU.apply(self.up(x))))
        return x + self.down(_SiLU.apply(self.up(x)))


def _model(*, ends_with_it):
    torch.manual_seed(0)
    return nn.Sequential(*(_Block(ends_with_it=ends_with_it) for _ in range(5)))


def _profile(step):
    gc.collect()
    step()
    with memwatch.profile(holders=False) as prof:
        step()
    return prof


def _training(model, x):
    def step():
        model.zero_grad()
        model(x).square().mean().backward()

    return step


@pytest.mark.parametrize("ends_with_it", [False, True])
def test_the_peak_of_checkpoints_counts_what_a_function_saves(ends_with_it):
    x = torch.randn(1024, 64)
    ways = _profile(_training(_model(ends_with_it=ends_with_it), x)).ways
    found = ways[ways["kind"] == "checkpoint"]
    assert len(found)
    for way in found.itertuples():
        model = _model(ends_with_it=ends_with_it)
        exec(way.lines, {"model": model})
        assert _profile(_training(model, x)).peak_bytes == pytest.approx(way.peak_bytes, rel=0.01)


def test_a_function_in_a_model_whose_backward_never_runs_needs_no_graph():
    model, x = _model(ends_with_it=False), torch.randn(1024, 64)

    def infer():
        return model(x).argmax(-1)

    ways = _profile(infer).ways
    way = ways[ways["kind"] == "without_graph"].iloc[0]
    exec(way["lines"], {"model": model})
    assert _profile(infer).peak_bytes == way["peak_bytes"]
