"""The checker is a good guest: gc's state, cost, its own leaks, text only."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from memwatch.heap.snapshot import Snapshot
from memwatch.heap.vertices import describe
from memwatch.leaks import RunsError, TensorLeakError, check_leaks, find_leaks

KEPT: list[torch.Tensor] = []


def park():
    KEPT.append(torch.randn(16))


@pytest.fixture(autouse=True)
def _fresh():
    torch.set_num_threads(1)
    yield
    KEPT.clear()


def gc_state():
    return (
        gc.isenabled(),
        gc.get_threshold(),
        gc.get_debug(),
        len(gc.garbage),
        len(gc.callbacks),
    )


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("frozen", [False, True])
def test_gc_is_left_as_it_was(enabled, frozen):
    """Thresholds, debug flags, frozen objects, garbage and callbacks do not change, with and without a leak."""
    threshold, debug = gc.get_threshold(), gc.get_debug()
    marker = [threshold]  # the count of frozen objects does not help, because frozen objects die like others
    try:
        gc.collect()  # otherwise gc could free objects of the imports at any time
        gc.set_threshold(523, 7, 9)
        gc.set_debug(gc.DEBUG_SAVEALL)
        if frozen:
            gc.freeze()
        if not enabled:
            gc.disable()
        before = gc_state()
        assert find_leaks(park)
        assert not find_leaks(lambda: torch.randn(4))
        with pytest.raises(TensorLeakError), check_leaks():
            park()
        with pytest.raises(ZeroDivisionError):
            find_leaks(lambda: 1 / 0)
        assert gc_state() == before
        assert any(obj is marker for obj in gc.get_objects()) is not frozen
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
        gc.set_debug(debug)
        gc.enable()


def test_a_clean_check_never_scans_the_heap(monkeypatch):
    """Every tensor dies, so there is no snapshot and no collection, however large the heap is."""
    collections = []
    monkeypatch.setattr(Snapshot, "__init__", lambda *_: pytest.fail("the heap was scanned"))
    gc.callbacks.append(lambda phase, info: collections.append(info["generation"]))
    try:
        assert find_leaks(lambda: torch.randn(8).sum().item()) == []
        with check_leaks():
            torch.randn(8).sum().item()
    finally:
        gc.callbacks.pop()
    assert collections == []


def test_a_diagnosis_makes_no_garbage():
    """Neither a clean nor a failing check leaves a cycle of its own for gc to find."""

    def diagnose_twice():
        assert find_leaks(park)
        with pytest.raises(TensorLeakError), check_leaks():
            park()

    diagnose_twice()  # the first calls import modules, and drop objects of earlier tests
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        # Python finds some things each time and frees them never, as an `accumulate` that is its own total
        older = list(gc.garbage)
        gc.garbage.clear()
        diagnose_twice()
        gc.collect()
        assert [describe(obj) for obj in gc.garbage] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        older.clear()
        gc.enable()


def test_a_thousand_uses_leave_nothing():
    """Objects of the process do not grow with the number of checks, clean or failing."""

    def clean():
        with check_leaks():
            torch.ones(1)

    def failing():
        with pytest.raises(TensorLeakError), check_leaks():
            park()
        find_leaks(park)

    for _ in range(50):
        clean()
    failing()  # the first one imports modules
    KEPT.clear()
    clean()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(1000):
        clean()
    for _ in range(3):
        failing()
    KEPT.clear()
    clean()  # a check forgets what died since the last one
    gc.collect()
    assert len(gc.get_objects()) - before < 100


def test_the_error_holds_nothing_of_the_program():
    """With the error and its leaks kept, the leaked tensor still dies with its holder."""
    holder = [torch.randn(16)]
    leaks = find_leaks(lambda: holder.append(torch.randn(16)))
    deaths = [weakref.ref(tensor) for tensor in holder]
    holder.clear()
    assert leaks
    assert all(ref() is None for ref in deaths)


def test_reading_locals_prolongs_no_life():
    """After a diagnosis, `del x` in a running function frees x at once."""
    history = []
    x = torch.randn(16)
    death = weakref.ref(x)
    assert find_leaks(lambda: history.append(torch.randn(4)))
    del x
    assert death() is None


class Trap:
    """Every hook that user code could be run by raises."""

    armed = False

    def _spring(self, *_):
        if Trap.armed:
            raise AssertionError("user code was run")

    def __getattribute__(self, name):
        Trap._spring(self)
        return object.__getattribute__(self, name)

    __repr__ = __str__ = __hash__ = __eq__ = __len__ = __bool__ = __del__ = lambda self, *_: (
        Trap._spring(self) or 0
    )

    @property
    def value(self):
        return self._spring()


def test_no_user_code_runs_during_a_diagnosis():
    """Neither attribute access, nor repr, hash, comparison, len, bool, property or unpack hook."""
    trap = object.__new__(Trap)
    object.__setattr__(trap, "held", [])
    held = object.__getattribute__(trap, "held")

    def unpack(tensor):
        raise AssertionError("an unpack hook was run")

    weight = torch.randn(8, requires_grad=True)

    def leak():
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), unpack):
            held.append(weight.exp().sum())

    Trap.armed = True
    try:
        (leak_, *_) = find_leaks(leak)
    finally:
        Trap.armed = False
    assert "held" in leak_.holder


def test_dead_weak_proxies_are_tolerated():
    """A proxy whose object died raises on almost any touch; the scan does not touch it."""
    target = torch.nn.Linear(1, 1)
    proxy = weakref.proxy(target)
    del target
    gc.collect()
    assert find_leaks(park)
    assert weakref.CallableProxyType is type(proxy)


def test_runs_must_make_sense():
    """The error names the values."""
    with pytest.raises(RunsError, match="runs=0"):
        find_leaks(park, runs=0)
    with pytest.raises(RunsError, match="runs=True"):
        find_leaks(park, runs=True)
    with pytest.raises(RunsError, match="warmup=-1"):
        find_leaks(park, warmup=-1)


@pytest.mark.parametrize(("warmup", "runs"), [(0, 1), (0, 2), (1, 1), (2, 3)])
def test_bytes_and_counts_are_per_call(warmup, runs):
    """However often it is called, one call leaks one tensor of 64 bytes."""
    (leak,) = find_leaks(park, warmup=warmup, runs=runs)
    assert (leak.nbytes, leak.count) == (64, 1)
    assert len(KEPT) == warmup + runs
    assert "in park" in leak.site


def test_arguments_are_passed_on():
    """find_leaks(fn, *args, **kwargs) calls fn(*args, **kwargs), five times if nothing grows."""
    calls = []
    find_leaks(lambda *args, **kwargs: calls.append((args, kwargs)), 1, 2, key="word")
    assert calls == [((1, 2), {"key": "word"})] * 5


def growing():
    seen = []
    return lambda: seen.append(torch.randn(16))


def test_what_only_the_function_itself_holds_is_retained():
    """A closure handed to find_leaks and known to nobody else is a holder like any."""
    (leak,) = find_leaks(growing())
    assert leak.kind == "retained"
    assert "closure cell `seen` of growing.<lambda>" in leak.holder


def test_what_only_an_argument_holds_is_retained():
    """A list handed to find_leaks and known to nobody else is a holder like any."""
    (leak,) = find_leaks(lambda history: history.append(torch.randn(16)), [])
    assert leak.kind == "retained"
    assert "argument [0]" in leak.holder
