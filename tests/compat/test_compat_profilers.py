"""A profiler that the program itself starts, before or inside the block, never fails because of memwatch."""

from __future__ import annotations

import pytest
import torch
from compat_harness import INTERCEPTS
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerActivity, profile, record_function, schedule

import memwatch


def _work() -> torch.Tensor:
    w = torch.ones(8, 8, requires_grad=True)
    with record_function("mine"):
        (w @ w).exp().sum().backward()
    return w.grad


def _ops(averages) -> dict[str, int]:
    kept = ("aten::mm", "aten::exp", "aten::sum", "mine", "aten::mul")
    return {event.key: event.count for event in averages if event.key in kept}


def _collapsed(counts: dict[str, int]) -> set[str]:
    return set(counts)


STARTERS = {
    "torch.profiler": lambda: profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True
    ),
    "torch.profiler with stacks": lambda: profile(activities=[ProfilerActivity.CPU], with_stack=True),
    "autograd profiler": lambda: autograd_profiler.profile(use_cpu=True),
}


@pytest.fixture(scope="module")
def plain_result():
    return _work()


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
@pytest.mark.parametrize("name", STARTERS)
def test_profiler_started_before_the_block(name, intercept, plain_result):
    """The program's profiler keeps its events; memwatch records the ops without the allocator and says so."""
    options = {"intercept": intercept}
    # torch makes an event of each call in Python, and takes a minute for a million of them
    if "stacks" in name:
        options["holders"] = False
        with memwatch.profile(**options):  # registers thousands of kernels
            pass
    with STARTERS[name]() as theirs, memwatch.profile(**options) as prof:
        result = _work()
    assert torch.equal(result, plain_result)
    assert {"aten::mm", "aten::exp", "mine"} <= _collapsed(_ops(theirs.key_averages()))
    assert len(prof.ops) > 3
    assert any(kind == "allocator" and "profiler" in text for kind, text in prof.notes)


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
@pytest.mark.parametrize("name", STARTERS)
def test_profiler_started_inside_the_block(name, intercept, plain_result):
    """The allocator channel steps aside in time and says so."""
    with memwatch.profile(intercept=intercept) as prof:
        _work()
        with STARTERS[name]() as theirs:
            result = _work()
        _work()
    assert torch.equal(result, plain_result)
    assert {"aten::mm", "aten::exp", "mine"} <= _collapsed(_ops(theirs.key_averages()))
    assert prof.peak_increase_bytes > 0
    assert any(kind == "allocator" and "profiler" in text for kind, text in prof.notes)


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_profiler_that_outlives_the_block(intercept, plain_result):
    with memwatch.profile(intercept=intercept):
        theirs = profile(activities=[ProfilerActivity.CPU])
        theirs.start()
        _work()
    result = _work()
    theirs.stop()
    assert torch.equal(result, plain_result)
    assert {"aten::mm", "aten::exp", "mine"} <= _collapsed(_ops(theirs.key_averages()))


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_profiler_started_before_and_stopped_inside(intercept, plain_result):
    theirs = profile(activities=[ProfilerActivity.CPU])
    theirs.start()
    with memwatch.profile(intercept=intercept):
        _work()
        theirs.stop()
        result = _work()
    assert torch.equal(result, plain_result)
    assert {"aten::mm", "aten::exp", "mine"} <= _collapsed(_ops(theirs.key_averages()))


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_profiler_with_a_schedule(intercept):
    ready = []
    with (
        memwatch.profile(intercept=intercept),
        profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=1, warmup=1, active=1, repeat=2),
            on_trace_ready=lambda each: ready.append(_collapsed(_ops(each.key_averages()))),
        ) as theirs,
    ):
        for _ in range(6):
            _work()
            theirs.step()
    assert len(ready) == 2
    assert all({"aten::mm", "aten::exp", "mine"} <= names for names in ready)


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_profiler_after_the_block(intercept):
    """A block leaves nothing that a later profiler would trip over."""
    with memwatch.profile(intercept=intercept):
        _work()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as theirs:
        _work()
    assert {"aten::mm", "aten::exp", "mine"} <= _collapsed(_ops(theirs.key_averages()))
    with memwatch.profile(intercept=intercept) as prof:
        _work()
    assert not [text for kind, text in prof.notes if kind == "allocator"]
