"""The search for changes simulates a few of the iterations that repeat each other, and finds the same changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from recorded_steps import record_steps
from torch import nn

import memwatch
from memwatch.analysis.ways import checkpointing
from memwatch.analysis.ways.checkpointing import Checkpointing
from memwatch.analysis.ways.timeline import Timeline
from memwatch.capture.columns import ChunkedTable


class _Program:
    """A step of a small model. Each kind repeats itself in another way."""

    def __init__(self, kind):
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.kind, self.number, self.kept = kind, 0, []

    def __call__(self):
        self.number += 1
        samples = 4 + 4 * (self.number % 3) if self.kind == "sizes" else 8
        result = self.model(torch.randn(samples, 16))
        loss = nn.functional.cross_entropy(result, torch.randint(0, 4, (samples,)))
        if self.kind == "evaluations":
            return
        if self.kind == "kept":
            self.kept.append(result.detach())
        if self.kind == "accumulation" and self.number % 4:
            loss.backward()
            return
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def _changes(prof):
    return [replace(each, time_ratio=0) for each in prof._tables.ways]  # times differ


@pytest.mark.parametrize("kind", ["training", "sizes", "accumulation", "evaluations", "kept"])
def test_leaving_out_repetitions_does_not_change_the_ways(kind, monkeypatch, tmp_path):
    record_steps(_Program(kind), steps=40).save(tmp_path / "run.memwatch")
    few = _changes(memwatch.load(tmp_path / "run.memwatch"))
    monkeypatch.setattr(checkpointing, "_MOST_ALIKE", 1_000)
    assert few == _changes(memwatch.load(tmp_path / "run.memwatch"))
    assert few


def test_the_simulated_iterations_do_not_grow_with_the_training():
    prof = record_steps(_Program("training"), steps=80)
    facts, saved = prof._tables.facts, prof._tables._saved_tensors
    found = Checkpointing(facts, saved, Timeline(facts))
    assert len(found.window) < len(facts.capture.tables["ops"]["name"]) / 7
    assert len(found.repetitions) > 60


def test_a_column_is_not_decoded_for_each_iteration(monkeypatch, tmp_path):
    """A long recording has thousands of iterations, and decoding a column takes as long as all its rows."""
    record_steps(_Program("training"), steps=40).save(tmp_path / "run.memwatch")
    decoded, decode = Counter(), ChunkedTable._decode

    def counted(table, name):
        decoded[name] += 1
        return decode(table, name)

    monkeypatch.setattr(ChunkedTable, "_decode", counted)
    assert not memwatch.load(tmp_path / "run.memwatch").ways.empty
    assert max(decoded.values()) < 40, decoded
