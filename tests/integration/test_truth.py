"""The numbers are the allocator's: profiles against independent allocator events of a second, plain run."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from truth_events import allocator_events, peak_increase_bytes, seeded
from truth_models import MAKERS
from truth_transformers import TRANSFORMERS

import memwatch
from memwatch.analysis.observer import observer_effects

PROGRAMS = {**MAKERS, **TRANSFORMERS}
MANY_OPS = {"gpt", "resnet", *TRANSFORMERS}


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@functools.cache
def plain_peak(name: str) -> int:
    """Return the increase of a plain run; the first run of a program has first-time effects: lazy imports, caches."""
    seeded(PROGRAMS[name])()
    return peak_increase_bytes(allocator_events(seeded(PROGRAMS[name])))


def observe(name: str, intercept: str) -> memwatch.Profile:
    plain_peak(name)
    program = seeded(PROGRAMS[name])
    with memwatch.profile(intercept=intercept) as prof:
        result = program()
    del result
    return prof


@pytest.mark.parametrize("intercept", ["key", "mode", "key-python", "mode-python"], indirect=True)
@pytest.mark.parametrize("name", PROGRAMS)
def test_peak_is_the_allocators(name, intercept):
    """The peak increase equals a plain run's, or differs by at most the reported bytes."""
    prof = observe(name, intercept)
    plain = plain_peak(name)
    effects = observer_effects(prof._tables.facts)
    stated = sum(effect.nbytes for effect in effects)
    if intercept == "key":
        assert all("8 bytes" in effect.text for effect in effects)
        assert not (effects and prof.meta["recorder"] == "native")
    assert plain <= prof.peak_increase_bytes <= plain + stated
    assert_accounts_for_everything(prof)
    if name in MANY_OPS:
        at_peak = prof.at_peak
        unknown = at_peak.loc[at_peak["category"] == "unknown", "nbytes"].sum()
        assert unknown < 0.01 * prof.peak_bytes


def assert_accounts_for_everything(prof: memwatch.Profile) -> None:
    """Born minus freed equals the live curve at every event, and the categories at the peak make the peak."""
    storages, timeline = prof.storages, prof.timeline
    counted = storages[storages["counted"]]
    balance = np.zeros(len(timeline) + 1, dtype=np.int64)
    np.add.at(balance, np.maximum(counted["birth_event"].to_numpy(), 0), counted["nbytes"].to_numpy())
    freed = counted[counted["death_event"] >= 0]
    np.subtract.at(balance, freed["death_event"].to_numpy(), freed["nbytes"].to_numpy())
    assert (np.cumsum(balance)[:-1] == timeline["live_bytes"].to_numpy()).all()
    assert prof.at_peak.groupby("category")["nbytes"].sum().sum() == prof.peak_bytes
    assert timeline["live_bytes"].max() == prof.peak_bytes


@pytest.mark.parametrize("name", ["gpt", "resnet", "lstm"])
def test_curve_is_the_allocators_event_for_event(name):
    """With the native recorder behind the key the live curve of the block is the plain program's, in order."""
    prof = observe(name, "key")
    events = [nbytes for _, nbytes in allocator_events(seeded(PROGRAMS[name])) if nbytes]
    assert [nbytes for nbytes in prof.timeline["delta_bytes"].tolist() if nbytes] == events


@pytest.mark.parametrize("name", ["gpt", "resnet", "lstm"])
def test_curve_of_the_python_recorder_is_the_allocators(name, monkeypatch):
    """With the key and Python it is the plain program's up to 8-byte tensors of Python numbers."""
    monkeypatch.setenv("MEMWATCH_NATIVE", "0")
    prof = observe(name, "key")
    events = [nbytes for _, nbytes in allocator_events(seeded(PROGRAMS[name])) if abs(nbytes) > 8]
    curve = [nbytes for nbytes in prof.timeline["delta_bytes"].tolist() if abs(nbytes) > 8]
    assert sorted(curve) == sorted(events)
    assert peak_increase_bytes(list(enumerate(curve))) == peak_increase_bytes(list(enumerate(events)))


@pytest.mark.parametrize("intercept", ["key", "mode"], indirect=True)
def test_steps_split_the_block(intercept):
    """`prof.step()` marks iterations; the largest of their peaks is the block's."""
    program = seeded(MAKERS["mlp"])
    with memwatch.profile(intercept=intercept) as prof:
        for _ in range(3):
            program()
            prof.step()
    assert len(prof.steps) == 3
    assert prof.steps["peak_bytes"].max() == prof.peak_bytes


def test_verify_finds_the_observer_effect():
    """verify() tells the plain peak; a mode raises it for topk, the key does not."""
    x = torch.randn(64, 512)

    def step():
        x.clone().requires_grad_().topk(5)[0].sum().backward()

    plain = peak_increase_bytes(allocator_events(step))
    by_key = memwatch.verify(step, intercept="key")
    by_mode = memwatch.verify(step, intercept="mode")
    assert by_key.plain_peak_increase_bytes == by_mode.plain_peak_increase_bytes == plain
    assert by_key.difference_bytes == 0
    assert by_mode.difference_bytes > 0
    assert "aten.topk" in str(by_mode)
