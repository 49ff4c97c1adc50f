"""A check inside a profile reports the same as one outside. It looks through the objects that memwatch packed."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import memwatch
from memwatch.leaks import TensorLeakError, check_leaks

WEIGHT = torch.ones(16, 16, requires_grad=True)
LOSSES = []


def inputs_saved():
    LOSSES.append((WEIGHT * torch.ones(16, 16)).pow(2).sum())


def output_saved():
    LOSSES.append(WEIGHT.exp().sum())


def packed_by_the_program():
    with saved_tensors_hooks(lambda tensor: [tensor.clone()], lambda packed: packed[0]):
        LOSSES.append(WEIGHT.exp().sum())


def leaks_of(program, *, sites):
    with pytest.raises(TensorLeakError) as caught, check_leaks(sites=sites):
        program()
    return [(leak.cause, leak.nbytes, leak.count, leak.advice) for leak in caught.value.leaks]


@pytest.mark.parametrize("backend", ["native", "python"])
@pytest.mark.parametrize("program", [inputs_saved, output_saved, packed_by_the_program])
def test_what_a_graph_keeps_is_found_inside_a_profile(program, backend, monkeypatch):
    """The report has the bytes of the activations, not of the loss alone, with and without lines."""
    monkeypatch.setenv("MEMWATCH_NATIVE", str(int(backend == "native")))
    for sites in (False, True):
        outside = leaks_of(program, sites=sites)
        with memwatch.profile(holders=False):
            inside = leaks_of(program, sites=sites)
        assert inside == outside
        assert sum(nbytes for _, nbytes, _, _ in inside) >= 1024


def test_a_graph_that_was_made_under_a_profile_is_seen_through_later():
    """Packs outlive their block; the path leads over what the node saved, not over a capsule."""
    with memwatch.profile(holders=False):
        inside = torch.ones(16, 16)
        LOSSES.append((WEIGHT * inside).sum())
    told = str(memwatch.why_alive(inside))
    assert "LOSSES" in told
    assert "saved" in told
