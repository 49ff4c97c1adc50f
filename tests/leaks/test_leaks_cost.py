"""The cost of a check depends on the objects that the block left, not on all objects of the process."""

from __future__ import annotations

import gc
import os
import tracemalloc
from pathlib import Path

import pytest
import torch

from memwatch.leaks import TensorLeakError, check_leaks, find_leaks
from memwatch.leaks.known_causes import KnownCauses
from memwatch.leaks.ledger import follow, unfollow

CROWD = 500_000
STATM = Path("/proc/self/statm")
KEPT: list[object] = []
AVERAGE: dict[str, torch.Tensor] = {}


@pytest.fixture(scope="module", autouse=True)
def _many_objects():
    torch.set_num_threads(1)
    gc.disable()
    crowd = [[number] for number in range(CROWD)]
    gc.enable()
    follow()
    checked()
    yield
    unfollow()
    crowd.clear()
    KEPT.clear()
    AVERAGE.clear()


def checked(body=lambda: None, known=None):
    """Return the leaks of a body."""
    try:
        with check_leaks(sites=False, known=known):
            body()
    except TensorLeakError as error:
        return error.leaks
    return []


@pytest.fixture
def objects_seen(monkeypatch):
    """Return how many objects an act lists, searches or collects, each look at all of them with its whole crowd."""
    looks = []
    get_objects, get_referrers = gc.get_objects, gc.get_referrers

    def listed(*args, **options):
        objects = get_objects(*args, **options)
        looks.append(len(objects))
        return objects

    def searched(*args):
        looks.append(len(get_objects()))
        return get_referrers(*args)

    def collected(phase, info):
        if phase == "start":
            looks.append(sum(len(get_objects(number)) for number in range(info["generation"] + 1)))

    def seen_by(act):
        looks.clear()
        gc.callbacks.append(collected)
        with monkeypatch.context() as patch:
            patch.setattr(gc, "get_objects", listed)
            patch.setattr(gc, "get_referrers", searched)
            act()
        gc.callbacks.remove(collected)
        return sum(looks)

    return seen_by


def test_a_clean_check_looks_at_what_was_made_since_the_last_one(objects_seen):
    """Also after gc's older generations have run, as they do between the tests of a session."""
    gc.collect(1)
    assert objects_seen(checked) < CROWD / 10


def test_a_cause_that_is_known_costs_no_look_at_all_objects(objects_seen):
    """The holder of a graph shares its storages with C++, and is still distinguished from older objects."""
    known = KnownCauses()

    def graph():
        weight = torch.ones(8, requires_grad=True)
        KEPT.append((weight * 2).exp().sum())

    assert objects_seen(lambda: checked(graph, known)) > CROWD
    assert objects_seen(lambda: checked(graph, known)) < CROWD / 10


def test_what_gc_moved_between_blocks_is_no_new_tensor():
    """A tensor that a fixture made, and gc moved among the old ones, may be replaced; another one kept is a leak."""

    def step():
        AVERAGE["mean"] = AVERAGE["mean"] * 0.9

    def leak():
        step()
        KEPT.append(torch.ones(64))

    for generation in (1, 2):
        AVERAGE["mean"] = torch.ones(64)
        gc.collect(generation)
        assert checked(step) == []
        AVERAGE["mean"] = torch.ones(64)
        gc.collect(generation)
        (found,) = checked(leak)
        assert (found.nbytes, found.count) == (256, 1)


def test_memory_given_to_an_older_tensor_without_any_is_not_the_blocks():
    """A tensor of no bytes was there before: that it is kept is not the block's doing."""
    empty = torch.empty(0)
    KEPT.append(empty)
    assert checked(lambda: empty.resize_(16)) == []


def test_collections_that_were_not_seen_have_the_heap_listed():
    """Whoever takes the callback away loses time alone."""
    unfollow()
    AVERAGE["mean"] = torch.ones(64)
    gc.collect(1)
    follow()
    assert checked(lambda: AVERAGE.update(mean=AVERAGE["mean"] * 0.9)) == []


@pytest.mark.skipif(not STATM.exists(), reason="no file says how much memory a process takes")
@pytest.mark.parametrize(
    "keep", [lambda value: value, lambda value: (1, value.numpy())], ids=["tensor", "array"]
)
def test_a_look_at_the_heap_takes_a_quarter_more_memory_at_most(keep):
    """A snapshot stores a few numbers per object, also when it searches for objects that gc does not show."""
    gc.collect()
    resident_bytes = int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    tracemalloc.start()
    try:
        assert find_leaks(lambda: KEPT.append(keep(torch.ones(64))), runs=1)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < resident_bytes / 4


def ran(_module, _args, _output):
    """Do nothing, as a hook."""


class Hooked(torch.nn.Module):
    """Registers a hook in itself, as every module of gpytorch does."""

    def __init__(self):
        super().__init__()
        self.register_forward_hook(ran)


def test_hooks_of_new_modules_cost_no_look_at_all_objects(objects_seen):
    """Also beside many older modules with hooks, which gc has moved to its oldest objects meanwhile."""
    older = [Hooked() for _ in range(100)]
    gc.collect(1)
    assert objects_seen(lambda: checked(Hooked)) < CROWD / 10
    assert len(older) == 100


@pytest.mark.parametrize("generation", [0, 1, 2])
def test_one_more_hook_of_an_older_module_is_found_wherever_gc_has_the_module(generation):
    older, other = Hooked(), Hooked()
    gc.collect(generation)
    assert checked(lambda: other.register_forward_hook(print)) == []
    (found,) = checked(lambda: older.register_forward_hook(ran))
    assert found.kind == "hooks"
    assert found.count == 1
