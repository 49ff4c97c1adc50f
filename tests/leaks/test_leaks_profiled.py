"""A check inside a profile reports the same as one outside. It looks through the objects that memwatch packed.

memwatch's own objects are never the cause of a leak.
"""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import memwatch
from memwatch.leaks import LeakWatch, TensorLeakError, check_leaks, find_leaks

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


class Owner:
    pass


def loop_around_a_tensor(owner):
    owner.itself, owner.tensor = owner, torch.ones(16, 16)


def loop_of_memwatch():
    loop_around_a_tensor(memwatch.profile())


def loop_of_the_program():
    loop_around_a_tensor(Owner())


def replayed_step():
    """The profile keeps the model's parameters for the replay."""
    model = torch.nn.Linear(16, 16)
    with memwatch.profile(replay=True):
        model(torch.ones(16, 16)).sum().backward()


def kinds_by_each_check(program):
    """Return the kinds of leaks that each way to check reports for a function."""
    found = [[leak.kind.value for leak in find_leaks(program, runs=2)]]
    for sites in (False, True):
        try:
            with check_leaks(sites=sites):
                program()
        except TensorLeakError as error:
            found.append([leak.kind.value for leak in error.leaks])
        else:
            found.append([])
    watch = LeakWatch()
    with watch:
        gc.disable()
        for _ in range(3):
            program()
            watch.mark()
        gc.enable()
    return [*found, [leak.kind.value for leak in watch.leaks]]


def test_memwatchs_own_objects_are_no_cause():
    assert kinds_by_each_check(loop_of_memwatch) == [[], [], [], []]


@pytest.mark.parametrize("sites", [False, True])
def test_a_profile_inside_a_check_is_no_cause(sites):
    with check_leaks(sites=sites):
        replayed_step()


def test_a_loop_of_the_programs_objects_is_a_cause_beside_them():
    """A mark of a LeakWatch collects garbage, so only the other checks see a loop."""
    assert kinds_by_each_check(loop_of_the_program) == [["cycle"], ["cycle"], ["cycle"], []]


def test_a_finished_profile_is_all_that_keeps_the_tensors_of_its_replay():
    """The recorder, whose parts are a cycle, has let go of them: no collection is needed."""
    gc.disable()
    try:
        model = torch.nn.Linear(16, 16)
        with memwatch.profile(replay=True) as prof:
            model(torch.ones(16, 16)).sum().backward()
        weight = weakref.ref(model.weight.untyped_storage())
        del model
        assert weight() is not None
        del prof
        assert weight() is None
    finally:
        gc.enable()
