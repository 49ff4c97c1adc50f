"""Which phase and module an op belongs to, also where a step fails."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

import memwatch


class FailingSGD(torch.optim.SGD):
    """Raise once the parameters are written, as a program's own check may."""

    def step(self, closure=None):
        super().step(closure)
        raise ValueError


class Lookahead(torch.optim.Optimizer):
    """Step with another optimizer, whose failures it swallows."""

    def __init__(self, base):
        self.base = base
        super().__init__(base.param_groups, {})

    @torch.no_grad()
    def step(self, closure=None):
        with contextlib.suppress(ValueError):
            self.base.step()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(0.5)


def phases(prof, name):
    ops = prof.ops[prof.ops["name"] == name]
    return list(zip(ops["phase"], ops["module"], strict=True))


@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_a_step_that_raises_is_over(intercept):
    """Code under `no_grad` after a failed step does not count as the optimizer's."""
    net = nn.Linear(4, 4)
    optimizer = FailingSGD(net.parameters(), lr=0.1)
    with memwatch.profile(intercept=intercept) as prof:
        for _ in range(3):
            net(torch.ones(2, 4)).sum().backward()
            with contextlib.suppress(ValueError):
                optimizer.step()
            with torch.no_grad():
                net(torch.ones(2, 4)).exp()
    assert phases(prof, "aten.addmm.default") == [("forward", "net")] * 6
    assert phases(prof, "aten.exp.default") == [("forward", "")] * 3
    written = [phase for phase in phases(prof, "aten.add_.Tensor") if phase[0] != "backward"]
    assert written == [("optimizer", "")] * 6


@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_a_step_inside_a_step_may_raise(intercept):
    """The outer step goes on, and ends where it ends."""
    net = nn.Linear(4, 4)
    optimizer = Lookahead(FailingSGD(net.parameters(), lr=0.1))
    with memwatch.profile(intercept=intercept) as prof:
        for _ in range(2):
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            with torch.no_grad():
                net(torch.ones(2, 4)).exp()
    assert phases(prof, "aten.mul_.Tensor") == [("optimizer", "")] * 4
    assert phases(prof, "aten.exp.default") == [("forward", "")] * 2
    assert phases(prof, "aten.addmm.default") == [("forward", "net")] * 4


def test_a_closure_of_a_step_runs_forward_inside_it():
    """LBFGS calls the model from its step: those ops are forward's, of the module."""
    net = nn.Linear(4, 4)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = net(torch.ones(2, 4)).pow(2).sum()
        loss.backward()
        return loss

    with memwatch.profile() as prof:
        optimizer.step(closure)
        net(torch.ones(2, 4))
    assert set(phases(prof, "aten.addmm.default")) == {("forward", "net")}
    assert set(phases(prof, "aten.cat.default")) == {("optimizer", "")}
