"""Fake and meta tensors take no memory. Figures count them only if the whole block is an estimate."""

from __future__ import annotations

import gc

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import memwatch
from memwatch.errors import MemwatchError

WAYS = ["key", "mode", "key-python", "mode-python"]
MANY = 1 << 24


def train():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(64, 256)).sum().backward()
        optimizer.step()


def baseline_bytes(intercept):
    gc.collect()
    with memwatch.profile(intercept=intercept) as prof:
        pass
    return prof.baseline_bytes


@pytest.mark.parametrize("intercept", WAYS, indirect=True)
def test_fakes_that_live_before_the_block_are_not_in_its_baseline(intercept):
    """As torch.compile keeps them in its caches for the rest of the process."""
    before = baseline_bytes(intercept)
    with FakeTensorMode():
        fake = torch.empty(MANY)
    meta = torch.empty(MANY, device="meta")
    assert baseline_bytes(intercept) == before
    assert fake.nbytes == meta.nbytes == 4 * MANY


@pytest.mark.parametrize("intercept", WAYS, indirect=True)
def test_fakes_that_the_block_makes_are_not_counted_but_told_of(intercept):
    meta = torch.empty(MANY, device="meta")
    with memwatch.profile(intercept=intercept, limit_bytes=4 * MANY) as prof:
        kept = [torch.ones(1000), meta + meta]
        with FakeTensorMode():
            kept.append(torch.empty(MANY))
    at_peak = prof.at_peak
    assert at_peak["nbytes"].max() < 4 * MANY
    assert prof.peak_increase_bytes < 5000
    assert at_peak["nbytes"].sum() == prof.peak_bytes
    (told,) = [text for kind, text in prof.notes if kind == "not memory"]
    assert "real ones would have 128.00 MiB" in told
    assert told.split(" enter")[0] in " ".join(prof.summary(color=False).split())


def test_a_real_program_is_told_nothing_of_it():
    with memwatch.profile() as prof:
        torch.ones(1000).exp()
    assert "not memory" not in dict(prof.notes)


@pytest.mark.parametrize("intercept", ["auto", "mode", "auto-python", "mode-python"], indirect=True)
def test_a_block_entered_under_a_fake_mode_is_an_estimate(intercept):
    """Its peak equals the real program's, except for the few bytes of step counts, which are real tensors."""
    with memwatch.profile(intercept="mode") as real:
        train()
    with FakeTensorMode(), memwatch.profile(intercept=intercept) as fake:
        train()
    assert fake.peak_increase_bytes == pytest.approx(real.peak_increase_bytes, rel=1e-4)
    assert fake.meta["intercept"] == "mode"
    assert "count the bytes of real tensors of these sizes" in dict(fake.notes)["not memory"]
    assert not real.meta["estimate"]
    assert fake.meta["estimate"]
    assert {"parameter", "gradient", "optimizer state"} <= set(fake.at_peak["category"])


def test_an_estimate_cannot_be_replayed():
    with FakeTensorMode(), memwatch.profile(replay=True) as prof:
        torch.ones(1000).exp()
    with pytest.raises(MemwatchError, match="record it without that mode"):
        memwatch.plan(prof, budget="60%")
