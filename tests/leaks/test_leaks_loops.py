"""Thousands of tensors on one long graph are told by the loops nearest to some of them, and by one cause."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from memwatch.leaks import TensorLeakError, check_leaks
from memwatch.leaks.components import Component, KnownLoops


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
