"""Saved tensors grow with the number of layers, and the report describes the growth."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memwatch
from memwatch.report.facts import repeated_layers


class Block(nn.Module):
    """A layer that saves three of its tensors for backward."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        return x + self.down(self.up(x).exp())


def record(layers):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Sequential(*(Block() for _ in range(layers))))
    x = torch.randn(4096, 8)
    with memwatch.profile() as prof:
        model(x).square().mean().backward()
    return prof


def test_repeated_layers_are_found_and_foretell_the_peak_of_twice_as_many():
    """The predicted peak for twice as many layers is the measured one within 3 %."""
    layers = repeated_layers(record(4))
    assert (layers.name, layers.class_name, layers.count) == ("1.*", "Block", 4)
    assert layers.twice_peak_bytes == pytest.approx(record(8).peak_bytes, rel=0.03)


def test_the_summary_says_it():
    """The sentence stands under the share that is saved for backward."""
    prof = record(4)
    assert f"{repeated_layers(prof)}" in " ".join(prof.summary(width=400).split("\n"))


def test_a_model_of_one_layer_has_nothing_to_tell():
    """Without modules that repeat the sentence is missing."""
    model = nn.Linear(4, 4)
    with memwatch.profile() as prof:
        model(torch.ones(2, 4)).sum().backward()
    assert repeated_layers(prof) is None
    assert " adds " not in prof.summary()


def test_unequal_modules_are_not_told_as_equal_ones():
    """Numbered modules of one class that differ in size, or have no parameters, get no common figure."""
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 1))
    with memwatch.profile() as prof:
        model(torch.ones(128, 64)).sum().backward()
    assert repeated_layers(prof) is None
    assert "Each of the" not in prof.summary()
