"""A module that runs several times before one backward: each call is worth a checkpoint, even of the whole model."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from ways import run_lines

import memwatch


class _Training:
    def __init__(self, chunks):
        gc.collect()
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.chunks = chunks


def _recorded(training):
    with memwatch.profile(holders=False) as prof:
        for _ in range(2):
            rows = torch.randn(4_096, 64).chunk(training.chunks)
            loss = torch.cat([training.model(part) for part in rows]).square().mean()
            training.optimizer.zero_grad()
            loss.backward()
            training.optimizer.step()
    return prof


def _checkpoints(prof):
    return [way for way in prof.ways.itertuples() if way.kind == "checkpoint"]


def test_a_model_that_is_called_for_each_chunk_is_checkpointed_as_a_whole():
    """One chunk at a time is computed again. The results stay the same in every bit."""
    plain = _Training(8)
    (way,) = _checkpoints(_recorded(plain))
    assert way.way == "checkpoint the module `plain.model`"
    assert way.modules == "plain.model"
    assert way.time_ratio > 1
    values = [parameter.detach().numpy().copy() for parameter in plain.model.parameters()]
    del plain  # its memory would count
    changed = _Training(8)
    run_lines(way.lines, plain=changed)
    assert _recorded(changed).peak_bytes == pytest.approx(way.peak_bytes, rel=0.001)
    for one, other in zip(values, changed.model.parameters(), strict=True):
        assert (one == other.detach().numpy()).all()


def test_a_model_that_is_called_once_is_not_checkpointed_as_a_whole():
    """All of it would be computed again at once."""
    assert not [way for way in _checkpoints(_recorded(_Training(1))) if way.modules == "training.model"]
