"""Modules that are called before their parent's `__init__` ends, as by a parametrization or to learn a shape."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import memwatch
from memwatch.record.module_registry import ModuleRegistry, SearchBudget
from memwatch.record.tables.rows import Rows, Strings, new_op_counter


class Block(nn.Module):
    def __init__(block, width, parametrize):  # noqa: N805  memwatch takes no module for a root if `self` is its name
        super().__init__()
        block.first = parametrize(nn.Conv2d(width, 8, 3, padding=1))
        block.second = parametrize(nn.Conv2d(8, 8, 3, padding=1))

    def forward(self, x):
        return torch.tanh(self.second(torch.tanh(self.first(x))))


class Measured(nn.Module):
    """A model that learns the shape of its features from a first call."""

    def __init__(self, width):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(width, 8, 3, padding=1), nn.Tanh())
        self.head = nn.Conv2d(self.features(torch.zeros(1, width, 8, 8)).shape[1], 8, 1)

    def forward(self, x):
        return torch.tanh(self.head(self.features(x)))


class CallsItself(Measured):
    def __init__(self, width):
        super().__init__(width)
        self(torch.zeros(1, width, 8, 8))


def plain(module):
    return module


def train(model, optimizer):
    for _ in range(2):
        loss = model(torch.rand(16, 3, 16, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def blocks_of(parametrize):
    return [Block(3, parametrize), Block(8, parametrize), Block(8, parametrize)]


def recording(make):
    with memwatch.profile() as prof:
        blocks = make()
        model = nn.Sequential(*blocks)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return prof


def calls(prof, names):
    return {name: prof.modules.loc[name, "calls"] for name in names}


def checkpointed(prof):
    ways = prof.ways
    return set(ways.loc[ways["kind"] == "checkpoint", "modules"])


PARTS = [f"{block}.{part}" for block in "012" for part in ("first", "second")]


@pytest.mark.parametrize("parametrize", [plain, parametrizations.spectral_norm, parametrizations.weight_norm])
def test_blocks_with_parametrizations_are_modules_of_their_own(parametrize):
    prof = recording(lambda: blocks_of(parametrize))
    assert calls(prof, ["0", "1", "2", *PARTS]) == dict.fromkeys(["0", "1", "2", *PARTS], 2)
    known = {name for name in prof.modules.index if name[:2] in ("0.", "1.", "2.") and name.count(".") == 1}
    assert known == set(PARTS)
    assert prof.modules.loc[PARTS, "parent"].tolist() == ["0", "0", "1", "1", "2", "2"]


@pytest.mark.parametrize("parametrize", [parametrizations.spectral_norm, parametrizations.weight_norm])
def test_blocks_with_parametrizations_are_offered_for_checkpoints(parametrize):
    offered = checkpointed(recording(lambda: blocks_of(parametrize)))
    assert offered
    assert offered == checkpointed(recording(lambda: blocks_of(plain)))


def test_a_parametrized_module_has_the_class_it_got():
    prof = recording(lambda: blocks_of(parametrizations.spectral_norm))
    assert set(prof.modules.loc[PARTS, "class_name"]) == {"ParametrizedConv2d"}


@pytest.mark.parametrize("block", [Measured, CallsItself])
def test_blocks_that_call_their_parts_while_they_are_made_keep_their_names(block):
    """The list of blocks exists before the model does, so the first calls come from no model."""
    prof = recording(lambda: [block(3), block(8), block(8)])
    in_init = 1 if block is CallsItself else 0
    assert calls(prof, ["0", "1", "2"]) == dict.fromkeys(["0", "1", "2"], 2 + in_init)
    parts = [f"{number}.{part}" for number in "012" for part in ("features.0", "head")]
    expected = {part: 2 + in_init + ("features" in part) for part in parts}
    assert calls(prof, parts) == expected
    assert {name for name in prof.modules.index if name.startswith("0.") and name.count(".") == 1} == {
        "0.features",
        "0.head",
    }


def test_a_loss_that_each_step_makes_anew_stays_one_module():
    """Without parameters, modules that one variable holds one after the other are one for the reader."""
    with memwatch.profile() as prof:
        model = Block(3, plain)
        for _ in range(3):
            criterion = nn.MSELoss()
            criterion(model(torch.rand(2, 3, 8, 8)), torch.zeros(2, 8, 8, 8)).backward()
    losses = prof.modules[prof.modules["class_name"] == "MSELoss"]
    assert losses["calls"].tolist() == [3]


class Loss(nn.Module):
    """A module without parameters. Its `__init__` may ask a registry to learn the modules of the running calls."""

    def __init__(self, registry=None):
        super().__init__()
        if registry is not None:
            registry.learn((), sys._getframe())


def test_a_module_at_the_address_of_one_that_was_in_construction_is_complete():
    """Complete modules without parameters that are made anew at the same place share one number."""
    registry = ModuleRegistry(
        Rows(), Strings(), lambda module, number: None, SearchBudget(), new_op_counter()
    )
    address = id(Loss(registry))
    second = Loss()
    if id(second) != address:
        pytest.skip("Python put the second module at another address")
    third = Loss()
    registry.learn([second], None)
    registry.learn([third], None)
    assert registry.number_of(second) == registry.number_of(third)


class FailsHalfWay(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256, bias=False) for _ in range(4))
        raise MemoryError


def fails_after_the_layers():
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4)))
    raise MemoryError(type(model))


def fails_with_plain_tensors():
    rows = [torch.rand(256, 256) for _ in range(4)]
    raise MemoryError(len(rows))


@pytest.mark.parametrize(
    ("program", "are_parameters"),
    [(FailsHalfWay, True), (fails_after_the_layers, True), (fails_with_plain_tensors, False)],
    ids=["in its __init__", "before it is returned", "no model"],
)
def test_parameters_of_a_model_that_cannot_be_built(program, are_parameters):
    with pytest.raises(MemoryError), memwatch.profile() as prof:
        program()

    large = prof.at_peak[prof.at_peak["nbytes"] >= 2**18]
    assert len(large) == 4
    assert (large["category"] == "parameter").all() == are_parameters
    assert (large["category"] != "parameter").all() != are_parameters
