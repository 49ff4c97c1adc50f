"""While the time budget of samples is used up, only births that make a new peak call the sampler."""

from __future__ import annotations

import pytest
import torch

import memwatch
from memwatch.record.clock import ticks
from memwatch.record.holders.sampler import HolderSampler
from memwatch.record.holders.state import SamplingCosts

ROUNDS, CHAIN, LONG_TICKS = 100, 20, 1 << 50
LOW, HIGH = 1 << 16, 1 << 18
"""Elements: the looks that are free go to the low ones, and those at the high ones depend on the time. Both are a climb
from whatever there is at entry."""


@pytest.fixture
def told(monkeypatch):
    """Return the sizes of the births that are reported to the sampler."""
    heard = []
    born = HolderSampler.born

    def listening(self, device, nbytes, high_bytes):
        heard.append(nbytes)
        born(self, device, nbytes, high_bytes)

    monkeypatch.setattr(HolderSampler, "born", listening)
    return heard


@pytest.fixture
def may_look(monkeypatch):
    """Return a list. Samples are affordable while it has items, and not for a long time while it is empty."""
    found = []
    monkeypatch.setattr(SamplingCosts, "is_affordable", lambda costs: bool(found))
    monkeypatch.setattr(SamplingCosts, "affordable_at_ticks", property(lambda costs: ticks() + LONG_TICKS))
    return found


@pytest.fixture(params=["1", "0"], autouse=True)
def native(request, monkeypatch):
    """Choose the recorder."""
    monkeypatch.setenv("MEMWATCH_NATIVE", request.param)


def chains(elements):
    """Every birth is as high as any: two tensors live at a time."""
    for _ in range(ROUNDS):
        y = torch.ones(elements)
        for _ in range(CHAIN):
            y = y * 2


def test_births_are_not_told_while_there_is_no_time_to_look(told, may_look):
    """A program that is always at its peak would otherwise report every op."""
    with memwatch.profile():
        chains(LOW)
        chains(HIGH)
        told_count = len(told)
        chains(HIGH)
    assert told_count < ROUNDS * CHAIN / 10
    assert len(told) == told_count


def test_a_climb_is_told_though_there_is_no_time(told, may_look):
    """A new peak is sampled at any cost."""
    with memwatch.profile():
        chains(LOW)
        chains(HIGH)
        before = len(told)
        kept = torch.ones(10 * HIGH)
    assert told[before:] == [kept.nbytes]


def test_births_are_told_again_once_there_is_time(told, may_look, monkeypatch):
    """The looks that were put off are taken then."""
    monkeypatch.setattr(SamplingCosts, "affordable_at_ticks", property(lambda costs: ticks()))
    with memwatch.profile() as prof:
        chains(LOW)
        chains(HIGH)
        before = len(told)
        may_look.append(True)
        chains(HIGH)
    assert len(told) > before
    assert prof.capture.meta["holder_samples"] > 13


def test_a_limit_is_heard_though_births_are_not_told(told, may_look):
    """Births that are not sampled count for the limit."""
    kept = []

    def program():
        with memwatch.profile(limit_bytes=100 * HIGH * 4):
            chains(LOW)
            chains(HIGH)
            kept.extend(torch.ones(HIGH) for _ in range(101))

    with pytest.raises(memwatch.MemoryLimitError):
        program()
