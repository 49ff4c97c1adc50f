"""The traceback of an error that leaves a block."""

from __future__ import annotations

import traceback

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import memwatch


class FailsAgain(torch.autograd.Function):
    """Fails in the second run of its forward, which a checkpoint makes in backward."""

    @staticmethod
    def forward(ctx, values, runs):
        runs.append(len(runs))
        if len(runs) > 1:
            torch.empty(1 << 60)
        return values * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, None


def in_recompute(*, use_reentrant):
    """Fail where a checkpoint computes its region again."""
    model, runs = nn.Linear(8, 8), []

    def region(values):
        return model(FailsAgain.apply(values, runs)).sin()

    data = torch.ones(4, 8, requires_grad=True)
    checkpoint(region, data, use_reentrant=use_reentrant).sum().backward()


def in_module():
    """Fail in an op of a module."""
    nn.Sequential(nn.Linear(8, 8), nn.Linear(4, 4))(torch.ones(2, 8))


def in_handler():
    """Fail while another error is handled."""
    try:
        in_module()
    except RuntimeError as error:
        raise ValueError("no such model") from error


PROGRAMS = {
    "recompute": lambda: in_recompute(use_reentrant=False),
    "reentrant recompute": lambda: in_recompute(use_reentrant=True),
    "module": in_module,
    "handler": in_handler,
}


def calls_of(error):
    """Return the calls of the traceback of an error and of its cause."""
    frames = [
        (frame.filename, frame.name, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)
    ]
    return [*frames[1:], *(calls_of(error.__cause__) if error.__cause__ else ())]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("intercept", ["key-native", "mode-native", "key-python"], indirect=True)
def test_it_shows_the_calls_of_the_program_alone(intercept, program):
    """The frames are those without memwatch, for the cause of an error too."""
    with pytest.raises((RuntimeError, ValueError)) as plain:
        PROGRAMS[program]()
    with pytest.raises((RuntimeError, ValueError)) as observed, memwatch.profile(intercept=intercept):
        PROGRAMS[program]()
    assert calls_of(observed.value) == calls_of(plain.value)
