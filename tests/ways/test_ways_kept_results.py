"""Checkpoints around a module that also returns tensors from its inside, such as a cache of keys and values."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from ways import run_lines

import memwatch


class _Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.key = nn.Linear(128, 512)
        self.wide, self.narrow = nn.Linear(512, 512), nn.Linear(512, 128)

    def forward(self, x):
        key = self.key(x).tanh()
        return x + self.narrow(self.wide(key).relu()), key


class _Decoder(nn.Module):
    def __init__(self, *, collects):
        super().__init__()
        self.layers = nn.ModuleList(_Layer() for _ in range(4))
        self.collects = collects

    def forward(self, x):
        keys = []
        for layer in self.layers:
            x, key = layer(x)
            if self.collects:  # and else nothing keeps it
                keys.append(key)
            del key
        return x, keys


class _Training:
    def __init__(self, *, keeps):
        gc.collect()
        torch.manual_seed(0)
        self.model = nn.ModuleDict(
            {"encoder": nn.Sequential(nn.Linear(128, 128), nn.ReLU()), "decoder": _Decoder(collects=keeps)}
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)


def _recorded(training):
    x = torch.randn(2_048, 128)
    with memwatch.profile(holders=False) as prof:
        for _ in range(3):
            result, keys = training.model["decoder"](training.model["encoder"](x))
            assert len(keys) in (0, 4)
            training.optimizer.zero_grad()
            result.square().mean().backward()
            training.optimizer.step()
    return prof


@pytest.mark.parametrize("keeps", [True, False])
def test_a_checkpoint_does_not_free_what_a_variable_keeps(keeps):
    """The second forward makes the keys anew, beside those of the variable."""
    found = [way for way in _recorded(_Training(keeps=keeps)).ways.itertuples() if way.kind == "checkpoint"]
    assert found
    for way in found:
        changed = _Training(keeps=keeps)
        run_lines(way.lines, training=changed)
        assert _recorded(changed).peak_bytes == pytest.approx(way.peak_bytes, rel=0.001)
        del changed
