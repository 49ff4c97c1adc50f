"""`foreach=False` for each optimizer: a loop over parameters makes other temporaries, and as many as were measured."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from recorded_steps import record_steps
from torch import nn
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop, Rprop

_WIDTHS = {"equal": [256] * 7, "unequal": [128, 256, 512, 256, 128, 64, 256]}


def _record(make_optimizer, widths, **options):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(*pair) for pair in pairwise(widths)))
    optimizer = make_optimizer(model.parameters(), **options)
    x = torch.randn(8, widths[0])

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return record_steps(step)


class _OwnAdam(Adam):
    """A subclass has the temporaries of the class whose step it runs."""

    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("shape", [*_WIDTHS])
@pytest.mark.parametrize(
    ("make_optimizer", "options"),
    [
        (SGD, {"momentum": 0.9, "weight_decay": 0.1}),
        (SGD, {"momentum": 0.9, "maximize": True}),
        (SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        (Adam, {}),
        (Adam, {"amsgrad": True}),
        (_OwnAdam, {"amsgrad": True}),
        (AdamW, {}),
        (RMSprop, {}),
        (RMSprop, {"centered": True, "momentum": 0.9}),
        (RMSprop, {"weight_decay": 0.1}),
        (Adagrad, {}),
        (Adagrad, {"weight_decay": 0.1}),
        (Adadelta, {}),
        (Adamax, {"weight_decay": 0.1}),
        (NAdam, {}),
        (RAdam, {}),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else ",".join(each) or "plain",
)
def test_a_loop_over_the_parameters_has_the_predicted_peak(make_optimizer, options, shape):
    lists = _record(make_optimizer, _WIDTHS[shape], foreach=True, **options)
    (way,) = (way for way in lists.ways.itertuples() if way.kind == "foreach")
    loop = _record(make_optimizer, _WIDTHS[shape], foreach=False, **options)
    assert way.peak_bytes == pytest.approx(loop.peak_bytes, rel=0.001)
    findings = [finding for finding in lists.findings if finding.kind == "optimizer"]
    assert [finding.predicted_peak_bytes for finding in findings] == [way.peak_bytes]


def test_no_loop_is_offered_whose_temporaries_are_not_known():
    """Rprop picks values of single parameters by masks, with and without lists."""
    lists = _record(Rprop, _WIDTHS["unequal"], foreach=True)
    loop = _record(Rprop, _WIDTHS["unequal"], foreach=False)
    assert loop.peak_bytes > 0.9 * lists.peak_bytes
    assert "foreach" not in {*lists.ways["kind"]}
    assert "optimizer" not in {str(finding.kind) for finding in lists.findings}
