"""Checkpoints of modules whose inputs from outside are written between the call and its backward."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memwatch


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class _Block(nn.Module):
    """Adds `noise` to what it computes; an activation does not save its input."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.ReLU(), nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32))
        self.register_buffer("shift", torch.zeros(32))

    def forward(self, x, noise=None):
        return self.layers(x if noise is None else x + noise) + self.shift


class _Net(nn.Module):
    """Calls blocks as `call` does."""

    def __init__(self, call):
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 1)
        self.blocks = nn.ModuleList([_Block() for _ in range(4)])
        self._call = call

    def forward(self, x):
        x, noise = self.first(x), torch.zeros(32)
        for block in self.blocks:
            x = self._call(block, x, noise)
        return self.last(x)


def _refill(block, x, noise):
    return x + block(x, noise=noise.normal_())


def _new_noise(block, x, noise):
    return x + block(x, noise=torch.randn(32))


def _add_in_place(block, x, noise):
    x += block(x)
    return x


def _add(block, x, noise):
    return x + block(x)


def _step(model, before_backward=None):
    torch.manual_seed(1)
    loss = model(torch.randn(2000, 16)).square().mean()
    if before_backward is not None:
        with torch.no_grad():
            before_backward(model)
    loss.backward()


def _recorded(model, before_backward=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _step(model, before_backward)
    with memwatch.profile(holders=False) as prof:
        for _ in range(2):
            optimizer.zero_grad()
            _step(model, before_backward)
            optimizer.step()
    return prof


def _model(call):
    torch.manual_seed(0)
    return _Net(call)


def _checkpoints(prof):
    return prof.ways[prof.ways["kind"] == "checkpoint"]


@pytest.mark.parametrize(("call", "twin"), [(_refill, _new_noise), (_add_in_place, _add)])
def test_a_block_whose_input_is_written_before_its_backward_is_not_checkpointed_and_its_twin_is(call, twin):
    found = _checkpoints(_recorded(_model(call)))
    assert not any(name.count(".") == 1 for modules in found["modules"] for name in modules.split(", "))
    found = _checkpoints(_recorded(_model(twin)))
    assert "blocks.1" in found["modules"].iloc[0].split(", ")


def test_a_block_whose_bias_is_written_before_its_backward_is_not_checkpointed():
    def change_bias(model):
        for block in model.blocks:
            block.layers[1].bias.mul_(0.5)  # autograd does not save a bias

    found = _checkpoints(_recorded(_model(_add), change_bias))
    assert found.empty


def test_a_buffer_that_is_written_before_the_backward_has_its_former_value_in_the_second_forward():
    def make():
        model = _model(_add)
        for block in model.blocks:
            block.forward = _shifted(block)
        return model

    def change_shift(model):
        for block in model.blocks:
            block.shift.add_(0.5)

    way = _checkpoints(_recorded(make(), change_shift)).iloc[0]
    plain, model = make(), make()
    exec(way["lines"], {"model": model})
    for each in (plain, model):
        _step(each, change_shift)
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    for one, other in zip(plain.buffers(), model.buffers(), strict=True):
        assert torch.equal(one, other)


def _shifted(block):
    return lambda x: block.layers(x + block.shift)  # the first layer's mask depends on the shift


class _Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Dropout(0.5), nn.Linear(128, 32))

    def forward(self, x):
        return x + self.layers(x)


def _evaluate(model):
    model.eval()
    model(torch.randn(8, 32))


def _evaluate_dropouts(model):
    for each in model.modules():
        each.train(not isinstance(each, nn.Dropout))


def _evaluate_and_train(model):
    _evaluate(model)
    model.train()


def _evaluate_with_graph(model):
    with torch.enable_grad():
        _evaluate_and_train(model)


@pytest.mark.parametrize(
    ("before_backward", "has_its_mode"),
    [
        (torch.nn.Module.eval, False),
        (_evaluate, False),
        (_evaluate_dropouts, False),
        (_evaluate_and_train, True),
        (_evaluate_with_graph, True),
        (lambda model: None, True),
    ],
)
def test_a_block_is_checkpointed_if_it_has_its_mode_again_in_the_backward(before_backward, has_its_mode):
    model = nn.Sequential(*(_Dropped() for _ in range(4)), nn.Linear(32, 1))

    def step():
        model.train()
        loss = model(torch.randn(2000, 32)).square().mean()
        with torch.no_grad():
            before_backward(model)
        loss.backward()

    step()
    with memwatch.profile(holders=False) as prof:
        for _ in range(2):
            model.zero_grad()
            step()
    assert _checkpoints(prof).empty == (not has_its_mode)
