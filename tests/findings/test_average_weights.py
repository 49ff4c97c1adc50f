"""Averaged weights: each tensor of the copy has its holder named, also the small ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memwatch


def shadow_dict(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def shadow_list(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("is_copied_in_block", [True, False])
@pytest.mark.parametrize(("layers", "wide"), [(5, 256), (23, 128), (100, 64)])
@pytest.mark.parametrize("copied", [shadow_dict, shadow_list])
def test_each_averaged_weight_has_a_named_holder(copied, layers, wide, is_copied_in_block):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(wide, wide) for _ in range(layers)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shadow = None if is_copied_in_block else copied(model)
    with memwatch.profile() as prof:
        shadow = copied(model) if shadow is None else shadow
        for _ in range(4):
            model(torch.randn(64, wide)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                averages = shadow.values() if isinstance(shadow, dict) else shadow
                for average, parameter in zip(averages, model.parameters(), strict=True):
                    average.lerp_(parameter, 0.1)
    held = prof.at_peak[prof.at_peak.category == "held"]
    assert len(held) == 2 * layers
    assert {holder.split(" (")[0].split(",")[0] for holder in held.holder} == {"`shadow`"}
