"""Optimizers that a program writes keep lists and dictionaries of their own: their attribute is named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memwatch

WIDE = 256
WEIGHT_BYTES = WIDE * WIDE * 4


class Momentum:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.momenta = [torch.zeros_like(parameter) for parameter in self.parameters]

    @torch.no_grad()
    def step(self):
        for parameter, momentum in zip(self.parameters, self.momenta, strict=True):
            momentum.mul_(0.9).add_(parameter.grad)
            parameter.sub_(momentum, alpha=0.1)


class ByParameter:
    def __init__(self, parameters):
        self.momenta = {parameter: torch.zeros_like(parameter) for parameter in parameters}

    @torch.no_grad()
    def step(self):
        for parameter, momentum in self.momenta.items():
            momentum.mul_(0.9).add_(parameter.grad)
            parameter.sub_(momentum, alpha=0.1)


class OfTorch(torch.optim.Optimizer):
    """Its own list is not the state that torch knows."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.momenta = [torch.zeros_like(each) for group in self.param_groups for each in group["params"]]

    @torch.no_grad()
    def step(self):
        parameters = (each for group in self.param_groups for each in group["params"])
        for parameter, momentum in zip(parameters, self.momenta, strict=True):
            momentum.mul_(0.9).add_(parameter.grad)
            parameter.sub_(momentum, alpha=0.1)


class OfTorchWithState(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self):
        for parameter, state in self.state.items():
            state["momentum"].mul_(0.9).add_(parameter.grad)
            parameter.sub_(state["momentum"], alpha=0.1)


def trained(make, *, inside):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDE, WIDE) for _ in range(4)])
    optimizer = None if inside else make(model.parameters())
    with memwatch.profile() as prof:
        optimizer = make(model.parameters()) if optimizer is None else optimizer
        for _ in range(4):
            model(torch.randn(64, WIDE)).square().mean().backward()
            optimizer.step()
            for parameter in model.parameters():
                parameter.grad = None
    return prof.at_peak


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("make", [Momentum, ByParameter, OfTorch])
def test_the_attribute_of_an_own_optimizer_is_named(make, inside):
    peak = trained(make, inside=inside)
    held = peak[(peak.category == "held") & (peak.nbytes == WEIGHT_BYTES)]
    assert len(held) == 4
    assert all("momenta" in holder for holder in held.holder), held.holder.tolist()


@pytest.mark.parametrize("make", [Momentum, ByParameter, OfTorch])
def test_a_small_item_of_a_list_is_not_left_on_the_stack_that_made_it(make):
    peak = trained(make, inside=True)
    held = peak[(peak.category == "held") & (peak.nbytes == WIDE * 4)]
    assert [holder for holder in held.holder if "evaluation stack" in holder] == []


def test_the_state_that_torch_knows_is_told_as_state():
    peak = trained(OfTorchWithState, inside=True)
    states = peak[(peak.category == "optimizer state") & (peak.nbytes == WEIGHT_BYTES)]
    assert len(states) == 4
    assert set(states.holder_kind) == {"optimizer state"}
