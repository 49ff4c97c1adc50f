"""A variable that the running statement has read last is no finding: a `del` cannot be inside the statement."""

from __future__ import annotations

import pytest
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


class OwnModel(nn.Module):
    """A module of the program: its own call has the input as an argument too."""

    def __init__(self):
        super().__init__()
        self.wide, self.net = nn.Linear(WIDE, WIDE), model()

    def forward(self, x):
        hidden = self.wide(x)
        return self.net(hidden)


class Runner:
    def __init__(self, net):
        self.net, self.x = net, torch.randn(ROWS, WIDE)

    def run(self):
        y = self.net(self.x)
        return float(y.sum())


@torch.no_grad()
def with_variable(net):
    x = torch.randn(ROWS, WIDE)
    y = net(x)
    return float(y.sum())


@torch.no_grad()
def with_batch(net):
    batch = {"x": torch.randn(ROWS, WIDE)}
    y = net(batch["x"])
    return float(y.sum())


@torch.no_grad()
def with_attribute(net):
    return Runner(net).run()


@torch.no_grad()
def with_loader(net):
    total = 0.0
    for x, _ in ((torch.randn(ROWS, WIDE), number) for number in range(3)):
        y = net(x)
        total += float(y.sum())
    return total


@pytest.mark.parametrize("make", [model, OwnModel])
@pytest.mark.parametrize("use", [with_variable, with_batch, with_attribute, with_loader])
def test_an_argument_that_torch_keeps_until_a_module_returns_is_not_drag(make, use):
    net = make()
    assert [holder for holder in dragged(lambda: use(net)) if "hidden" not in holder] == []


def test_a_model_may_drop_what_it_made_before_it_returns():
    """The line `hidden = ...` of the module is the program's own, and the module's input is not to blame."""
    net = nn.Sequential(OwnModel())

    class Wide(nn.Module):
        def forward(self, x):
            hidden = net(x)
            result = hidden * 2
            return torch.cat([result] * 4)

    (holder,) = dragged(lambda: with_variable(Wide()))
    assert "`hidden`" in holder


def keeps_the_first(step):
    noise = torch.randn(ROWS, WIDE)
    x = noise
    for _ in range(4):
        x = step(x)
    return float(x.sum())


def replaces_the_first(step):
    x = torch.randn(ROWS, WIDE)
    for _ in range(4):
        x = step(x)
    return float(x.sum())


def shifted(x):
    wide = x.relu()
    wide = wide * 2
    return wide + 1


@pytest.mark.parametrize("is_module", [False, True])
def test_a_variable_is_drag_in_the_later_passes_of_a_loop_of_one_line(is_module):
    step = torch.no_grad()(model()) if is_module else shifted
    (holder,) = dragged(lambda: keeps_the_first(step))
    assert "`noise`" in holder
    assert dragged(lambda: replaces_the_first(step)) == []


def test_a_variable_is_drag_while_the_next_statement_of_one_line_runs():
    net = model()

    @torch.no_grad()
    def predict_twice():
        x = torch.randn(ROWS, WIDE)
        y = net(x); z = net(y)  # noqa: E702  # fmt: skip
        return float(z.sum())

    (holder,) = dragged(predict_twice)
    assert "`x`" in holder


@pytest.mark.parametrize("lines", [1, 3])
def test_the_result_of_a_model_is_found_in_the_backward_of_its_loss(lines):
    net = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 16 * WIDE))
    x, labels = torch.randn(ROWS, WIDE), torch.zeros(ROWS, dtype=torch.long)

    def on_three_lines():
        logits = net(x)
        loss = nn.functional.cross_entropy(logits, labels)
        loss.backward()

    def on_one_line():
        logits = net(x); loss = nn.functional.cross_entropy(logits, labels); loss.backward()  # noqa: E702  # fmt: skip

    with memwatch.profile() as prof:
        on_one_line() if lines == 1 else on_three_lines()
    assert any("`logits`" in each.holder for each in prof.findings)


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
