"""Thousands of tensors on one long graph are reported with the cycles nearest to some of them, as one cause."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest
import torch
from torch import nn

from memwatch.gc_pause import HAS_THREE_GENERATIONS
from memwatch.leaks import TensorLeakError, check_leaks, find_leaks
from memwatch.leaks.loops import Component, KnownLoops


def train(steps):
    """Add up gradients with their graphs: each step's graph hangs on the parameters, and all on one another."""
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    for _ in range(steps):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model(torch.ones(8, 2)).pow(2).mean().backward(create_graph=True)


def test_a_long_graph_has_one_cause_and_few_searches(monkeypatch):
    """The more steps, the more tensors: the searches for loops stay as few."""
    searches = []
    shortest = Component.shortest_loop
    monkeypatch.setattr(Component, "shortest_loop", lambda *args: searches.append(args) or shortest(*args))
    with pytest.raises(TensorLeakError) as caught, check_leaks():
        train(60)
    leaks = caught.value.leaks
    assert sum(leak.count for leak in leaks) > 300
    assert len({leak.cause for leak in leaks}) == 1
    assert all(leak.edges for leak in leaks)
    assert len(searches) <= 64


def test_a_loop_is_found_from_any_of_its_objects_once_it_is_known():
    """Nothing is searched for again from an object, or a reference, that a known loop passes through."""
    references = [(1, 2), (2, 3), (3, 1), (2, 4), (4, 2)]
    component = Component([1, 2, 3, 4], references)
    assert component.shortest_loop(2) == [2, 4, 2]
    assert component.shortest_loop(1) == [1, 2, 3, 1]
    assert component.shortest_loop(2, 3) == [2, 3, 1, 2]
    known = KnownLoops()
    number = known.add([1, 2, 3])
    assert [known.through(place) for place in (1, 2, 3, 4)] == [number, number, number, None]
    assert known.through(3, 1) == number
    assert known.through(1, 3) is None


class Node:
    """May refer to itself."""

    def __init__(self):
        self.me, self.kept = self, []


def ring():
    Node().kept.append(torch.ones(16))


def hooked():
    value = torch.ones(16, requires_grad=True).exp()
    value.register_hook(lambda grad: grad * value)


@pytest.fixture
def generations():
    """Return the generations that gc collects from here on."""
    found = []

    def note(phase, info):
        if phase == "start":
            found.append(info["generation"])

    gc.collect()
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


@pytest.mark.skipif(not HAS_THREE_GENERATIONS, reason="gc has no middle generation")
@pytest.mark.parametrize(("program", "kind"), [(ring, "cycle"), (hooked, "uncollectable")])
def test_a_loop_of_young_objects_is_told_without_a_full_collection(program, kind, generations):
    """All holders are as young, so a collection of the young objects frees it."""
    [leak] = find_leaks(program)
    assert leak.kind == kind
    assert generations
    assert 2 not in generations


def test_what_hangs_on_a_loop_from_before_the_calls_is_a_cycle(generations):
    """A collection of young objects would not free it."""
    gc.disable()
    try:
        older = weakref.ref(Node())
        [leak] = find_leaks(lambda: older().kept.append(torch.ones(16)), warmup=1, runs=2)
    finally:
        gc.enable()
    assert leak.kind == "cycle"
    assert 2 in generations
