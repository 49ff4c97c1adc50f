"""A variable that the running statement has read last is no finding: a `del` cannot be inside the statement."""

from __future__ import annotations

import torch
from torch import nn

import memwatch

ROWS, WIDE = 256, 64


def model():
    return nn.Sequential(nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE))


def dragged(fn):
    with memwatch.profile() as prof:
        fn()
    return [each.holder for each in prof.findings if each.kind == "drag"]


def test_an_input_of_a_model_is_not_drag_while_the_call_of_the_model_runs():
    net = model()

    def predict():
        with torch.no_grad():
            x = torch.randn(ROWS, WIDE)
            y = net(x)
            return float(y.sum())

    def generate():
        with torch.no_grad():
            x = torch.randn(ROWS, WIDE)
            for _ in range(4):
                x = net(x)
            return float(x.sum())

    assert dragged(predict) == []
    assert dragged(generate) == []


def test_an_input_of_a_model_is_drag_in_a_later_statement():
    net = model()

    def predict_twice():
        with torch.no_grad():
            x = torch.randn(ROWS, WIDE)
            y = net(x)
            z = net(y)
            return float(z.sum())

    (holder,) = dragged(predict_twice)
    assert "`x`" in holder


def add_noise(x):
    total = x.sum()
    noise = torch.zeros(4 * ROWS, WIDE) + 1
    return float(total + noise.sum())


def test_an_argument_is_drag_after_the_statement_of_its_own_call():
    (holder,) = dragged(lambda: add_noise(torch.randn(ROWS, WIDE) + 1))
    assert "`x`" in holder
