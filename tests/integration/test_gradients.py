"""Gradients are reported as gradients even if the program drops them before the first op after backward."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memwatch

BOTH = pytest.mark.parametrize(
    "intercept", ["key-native", "mode-native", "key-python", "mode-python"], indirect=True
)
WIDTH, HIDDEN = 200, 300
SECOND_WEIGHT_BYTES = 50 * HIDDEN * 4


def train(intercept, *, steps=2):
    net = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 50))
    with memwatch.profile(intercept=intercept) as prof:
        for _ in range(steps):
            net(torch.ones(64, WIDTH)).pow(2).mean().backward()
            net.zero_grad()
    return prof


def gradient_rows(prof, nbytes):
    rows = prof.at_peak
    return rows[(rows["category"] == "gradient") & (rows["nbytes"] == nbytes)]


@BOTH
def test_dropped_before_the_next_op(intercept):
    """`backward(); zero_grad()` runs no op in between, and each gradient has its role and its parameter's name."""
    prof = train(intercept)
    made = prof.storages[prof.storages["category"] == "gradient"]
    assert sorted(made["name"]) == sorted(
        ["`0.weight` .grad", "`0.bias` .grad", "`2.weight` .grad", "`2.bias` .grad"] * 2
    )


@BOTH
def test_added_up_before_the_peak(intercept):
    """Several peaks are equally high. A sample at one of them finds `.grad` in torch's own records."""
    rows = gradient_rows(train(intercept), SECOND_WEIGHT_BYTES)
    assert list(rows["holder"]) == ["`2.weight` .grad"]
    assert list(rows["holder_evidence"]) == ["structure"]


@pytest.mark.parametrize("kind", [nn.ParameterList, list])
def test_of_parameters_whose_module_is_never_called(kind):
    with memwatch.profile() as prof:
        weights = kind([nn.Parameter(torch.ones(WIDTH, HIDDEN)) for _ in range(4)])
        for number in range(4):
            weights[number].square().sum().backward()
    rows = gradient_rows(prof, WIDTH * HIDDEN * 4)
    assert len(rows) >= 3
    assert rows["holder"].str.endswith(".grad").sum() >= 3, set(rows["holder"])
    assert not prof.at_peak["holder"].str.contains("no reference").any()


@BOTH
def test_on_its_way_at_the_peak(intercept):
    """A gradient that its own node has not given away at the peak is in `.grad` only later: that is inferred."""
    prof = train(intercept)
    sums = prof.ops.index[prof.ops["name"] == "aten.sum.dim_IntList"]
    rows = gradient_rows(prof, WIDTH * HIDDEN * 4)
    peak = prof.timeline["live_bytes"].argmax()
    assert prof.timeline["op"].iloc[peak] in sums  # of the bias, by the node that made the weight's
    assert list(rows["holder_evidence"]) == ["inferred"]


@BOTH
def test_a_backward_that_fails(intercept):
    """If a backward raises, its accumulated gradients are known at the next op."""

    def refuse(gradient):
        raise ValueError("not this one")

    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    with memwatch.profile(intercept=intercept) as prof:
        hidden = first(torch.ones(2, 8))
        hidden.register_hook(refuse)
        with pytest.raises(ValueError, match="not this one"):
            second(hidden).sum().backward()
        torch.ones(3)
    assert set(prof.storages.query("category == 'gradient'")["module"]) == {"second"}


@BOTH
def test_set_by_the_program(intercept):
    """Gradients that a program puts into `.grad` itself are known at the optimizer's step, though no op ran since."""
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with memwatch.profile(intercept=intercept) as prof:
        loss = net(torch.ones(2, 8)).sum()
        for parameter, gradient in zip(
            net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True
        ):
            parameter.grad = gradient
        optimizer.step()
    assert len(prof.storages.query("category == 'gradient'")) == 2
