"""Nearly all of the peak of a plain training loop is seen, or read from torch's own records."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional

import memwatch


def _known_ratio(prof):
    at_peak = prof.at_peak
    is_known = at_peak["holder_evidence"].isin(["seen", "structure"])
    return at_peak["nbytes"][is_known].sum() / at_peak["nbytes"].sum()


@pytest.mark.parametrize("samples", [16, 1024])
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
def test_an_adamw_loop_is_known_to_nine_tenths(foreach, steps, samples):
    """With few samples the peak is in the step, between two ops of it that were sampled; otherwise in the backward."""
    gc.collect()  # samples of roles are limited by the number of objects, also of those of earlier tests
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(4)))
    optimizer, x = torch.optim.AdamW(model.parameters(), foreach=foreach), torch.randn(samples, 256)
    with memwatch.profile() as prof:
        for _ in range(steps):
            optimizer.zero_grad()
            functional.mse_loss(model(x), x).backward()
            optimizer.step()
    assert _known_ratio(prof) >= 0.9


class _Forgetful(torch.optim.SGD):
    """Takes its state out of the optimizer in the middle of a step."""

    @torch.no_grad()
    def step(self, closure=None):
        """Halve the parameter."""
        (parameter,) = self.param_groups[0]["params"]
        kept = self.state.pop(parameter)["average"]
        larger = torch.ones(3 * parameter.numel())
        parameter.mul_(0.5)
        del larger
        self.state[parameter] = {"average": kept}


def test_a_state_that_the_program_took_out_of_its_optimizer_is_not_said_to_be_there():
    """Samples before and after the step find it there. The code in between is the program's, not torch's."""
    parameter = nn.Parameter(torch.ones(50_000))
    optimizer = _Forgetful([parameter], lr=0.1)
    optimizer.state[parameter] = {"average": torch.ones(50_000)}
    with memwatch.profile() as prof:
        for _ in range(3):
            optimizer.step()
    at_peak = prof.at_peak
    states = at_peak[at_peak["category"] == "optimizer state"]
    assert not (states["holder_evidence"] == "structure").any(), states["holder"].to_list()
