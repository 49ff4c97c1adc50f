"""A cause is searched for once: what leaks for it later is told without a look at the whole heap."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from memwatch.heap.snapshot import Snapshot
from memwatch.leaks import TensorLeakError, check_leaks
from memwatch.leaks import diagnose as diagnosis
from memwatch.leaks.known_causes import KnownCauses

KEPT, GRAPHS, ARRAYS = [], [], []
HOLDER = {"inside": [KEPT]}


@pytest.fixture(autouse=True)
def _fresh():
    torch.set_num_threads(1)
    yield
    for kept in (KEPT, GRAPHS, ARRAYS):
        kept.clear()


@pytest.fixture
def whole_heaps(monkeypatch):
    """Count the snapshots of the whole heap."""
    taken = []

    class Counted(Snapshot):
        def __init__(self, *args, roots=None, **kwargs):
            if roots is None:
                taken.append(1)
            super().__init__(*args, roots=roots, **kwargs)

    monkeypatch.setattr(diagnosis, "Snapshot", Counted)
    return taken


def leaks_of(body, known, *, sites=False):
    try:
        with check_leaks(sites=sites, known=known):
            body()
    except TensorLeakError as error:
        return error.leaks
    return []


def retained():
    KEPT.append(torch.ones(100))


def graph():
    weight = torch.ones(100, requires_grad=True)
    GRAPHS.append((weight * 2).exp().sum())


def array():
    ARRAYS.append((1, torch.ones(100).numpy()))


def hook():
    y = torch.ones(100, requires_grad=True).exp()
    y.register_hook(lambda grad: grad * y)


def gradient():
    weight = torch.ones(100, requires_grad=True)
    gradient = torch.autograd.grad((weight**3).sum(), weight, create_graph=True)[0]
    weight.grad = gradient


def test_a_cause_is_searched_for_once(whole_heaps):
    """The second report has the same kinds, bytes, causes and references, and needs no snapshot of the heap."""
    known = KnownCauses()

    def all_leaks():
        for body in (retained, graph, array, hook, gradient):
            body()

    told = []
    for _ in range(2):
        leaks = leaks_of(all_leaks, known)
        told.append(sorted((leak.cause, leak.kind, leak.nbytes, leak.cut.kind.name) for leak in leaks))
        searched, whole_heaps[:] = len(whole_heaps), []
    assert len(told[0]) == 5
    assert told[0] == told[1]
    assert searched == 0


class Strategy:
    """Keeps what a graph computes; the graph keeps the strategy, through a hook of a node."""

    def __init__(self, *, hooked):
        self.model = torch.nn.Linear(10, 10)
        self.model.describe = self.model.extra_repr  # the model alone is a loop that gc sees
        self.mean = self.model(torch.ones(10)).exp()
        if hooked:
            self.mean.grad_fn.register_hook(self.clear)

    def clear(self, *_):
        del self.mean


@pytest.mark.parametrize("times", [1, 2])
def test_what_hangs_on_a_loop_that_is_never_freed_is_not_blamed_on_one_that_gc_frees(whole_heaps, times):
    """All that a loop unseen by gc keeps has it for cause, what a nearer loop holds too; later, at one look nearby."""
    known = KnownCauses()
    for _ in range(times):
        whole_heaps.clear()
        [leak] = leaks_of(lambda: Strategy(hooked=True), known)
    assert (leak.kind, leak.count) == ("uncollectable", 4)
    assert "node hooks" in leak.holder
    assert len(whole_heaps) == (times == 1)
    [leak] = leaks_of(lambda: Strategy(hooked=False), known)
    assert (leak.kind, leak.count) == ("cycle", 2)  # weight and bias alone
    assert "extra_repr" in leak.holder


def test_a_cycle_of_what_the_block_made_needs_no_look_at_the_heap(whole_heaps):
    """Young garbage is found among young objects, the first time already."""

    def cycle():
        ring = [torch.ones(100), np.ones(1)]
        ring.append((ring,))

    [leak] = leaks_of(cycle, KnownCauses())
    assert (leak.kind, leak.nbytes) == ("cycle", 400)
    assert not whole_heaps


def test_a_known_holder_does_not_hide_another(whole_heaps):
    """A tensor that no known path reaches is searched for. A tensor without a new holder is not a leak."""
    known, other = KnownCauses(), []
    leaks_of(retained, known)

    def both():
        retained()
        other.append(torch.ones(200))

    assert sorted(leak.nbytes for leak in leaks_of(both, known)) == [400, 800]
    old = torch.ones(300)
    assert leaks_of(lambda: KEPT.append(old.view(3, 100)), known) == []


def test_a_way_that_is_gone_is_not_followed(whole_heaps):
    """A holder in another place since then is found anew."""
    known = KnownCauses()
    HOLDER["first"] = []
    first = leaks_of(lambda: HOLDER["first"].append(torch.ones(100)), known)
    HOLDER["second"] = HOLDER.pop("first")
    second = leaks_of(lambda: HOLDER["second"].append(torch.ones(100)), known)
    assert len(first) == len(second) == 1
    assert "'second'" in second[0].holder
    HOLDER.clear()


def test_causes_of_two_functions_differ_and_of_one_are_equal():
    """A cause is a place in the code: neither the number of an item nor the class of an object counts."""

    class Base:
        def __init__(self):
            self.weight = torch.ones(100)
            self.kept = self.method

        def method(self):
            pass

    class Other(Base):
        pass

    known = KnownCauses()
    causes = [
        [leak.cause for leak in leaks_of(body, known)] for body in (Base, Other, retained, retained, hook)
    ]
    assert causes[0] == causes[1]
    assert causes[2] == causes[3]
    assert len({causes[0][0], causes[2][0], causes[4][0]}) == 3


def traced():
    def sums(x, n):
        return [x, x * 2]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(sums, (torch.ones(1, 1, 64), torch.tensor(2)))


@pytest.mark.parametrize("sites", [False, True])
def test_what_c_alone_holds_is_searched_for_once(whole_heaps, sites):
    """The check of a trace leaves two numbers in C++ each time."""
    known = KnownCauses()
    assert leaks_of(traced, known, sites=sites) == []
    first = len(whole_heaps)
    for _ in range(3):
        assert leaks_of(traced, known, sites=sites) == []
    assert len(whole_heaps) == first


def test_more_than_c_is_known_to_hold_is_searched_for():
    """A leak of the same size is reported, beside such numbers and alone."""
    known = KnownCauses()
    assert leaks_of(traced, known) == []

    def traced_and_kept():
        traced()
        KEPT.append(torch.tensor(2))

    def kept():
        KEPT.append(torch.tensor(2))

    for body in (kept, traced_and_kept):
        [leak] = leaks_of(body, known)
        assert "KEPT" in leak.holder
