"""A block may end where C++ does not expect it: inside an op, in a forked child, before it has begun."""

from __future__ import annotations

import gc
import random
import signal
import sys
import weakref

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import memwatch
from memwatch.errors import MemoryLimitError
from memwatch.record import session
from memwatch.record.python import recorder

INTERCEPTS = pytest.mark.parametrize("intercept", ["key", "mode"])


@INTERCEPTS
def test_a_block_may_be_left_inside_an_op(intercept):
    """The recording ends there. The op and the program go on."""
    library = torch.library.Library("memwatch_endings", "FRAGMENT")
    library.define("stop(Tensor x) -> Tensor")
    profiles = []

    def stop(x):
        profiles[-1].__exit__(None, None, None)
        gc.collect()
        return x.clone()

    library.impl("stop", stop, "CompositeExplicitAutograd")
    for _ in range(5):
        profiles.append(memwatch.profile(intercept=intercept).__enter__())
        x = torch.ones(3).exp()
        assert torch.equal(torch.ops.memwatch_endings.stop(x) + 1, x + 1)
        assert _get_current_dispatch_mode_stack() == []
    library._destroy()
    assert all(len(prof.ops) >= 2 for prof in profiles)


@pytest.mark.parametrize("intercept", ["key", "mode", "key-python", "mode-python"], indirect=True)
def test_a_signals_handler_may_end_the_block(intercept):
    """The handler ends the block at any moment outside of a backward.

    A backward restores the states that are switched off inside it.
    """
    open_blocks, ended = [], []

    def end(number, frame):
        if torch._C._current_graph_task_id() != -1:
            return
        try:
            prof = open_blocks.pop()
        except IndexError:  # the signal before is being handled
            return
        prof.__exit__(None, None, None)
        ended.append(prof)

    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(net.parameters())
    rng = random.Random(0)
    before = signal.signal(signal.SIGALRM, end)
    # The stages of other tools are Python. Handlers run in them, within torch's own C++.
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    try:
        for _ in range(12):
            open_blocks.append(memwatch.profile(intercept=intercept).__enter__())
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 2e-2), 1e-3)
            while open_blocks:
                optimizer.zero_grad()
                net(torch.randn(4, 8)).sum().backward()
                optimizer.step()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.callbacks.extend(callbacks)
    assert _get_current_dispatch_mode_stack() == []
    assert sys.getprofile() is None
    for prof in ended:
        numbers = prof.capture.tables["ops"]["op"].tolist()
        assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("intercept", ["key", "key-python"], indirect=True)
def test_the_block_may_end_while_its_books_are_made_up(intercept):
    """As by a signal's handler that runs in another tool's callback of gc, while backward's storages are noted."""
    prof = memwatch.profile(intercept=intercept)
    prof.__enter__()
    tensors = [torch.ones(2) for _ in range(2000)]
    storages = _session().storages

    def end(phase, info):
        if _session() is not None:
            prof.__exit__(None, None, None)

    gc.callbacks.append(end)
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        storages.rewatch()
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(end)
    assert len(prof.ops) == len(tensors)


def _session():
    return next(iter(session._running), None)


CHILD = """
import os, resource, torch, memwatch
with memwatch.profile():
    x = torch.ones(4)
    if (child := os.fork()) == 0:
        for _ in range(1000): x.exp()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(50_000): x.exp()
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        with torch.profiler.profile(): x.exp()
        os._exit(0 if grown_kib < 4096 else 1)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_is_left_alone(fresh_python):
    """Its allocations are not collected, and it may start torch's profiler."""
    done = fresh_python(CHILD, whole_end=True)
    assert done.returncode == 0, done.stderr


def test_a_window_that_cannot_begin_keeps_those_before(monkeypatch):
    """If torch's profiler does not start again, the block goes on without events, and a note reports it."""
    monkeypatch.setenv("MEMWATCH_NATIVE", "0")

    def fail(**_options):
        raise RuntimeError("no profiler")

    with memwatch.profile() as prof:
        torch.ones(1000)
        monkeypatch.setattr(recorder, "start_allocator_events", fail)
        assert _session()._allocator.cut()
        torch.ones(1000)
    assert len(prof.ops) == 2
    assert any("no profiler" in text for _, text in prof.notes)


CHILD_THAT_FREES = """
import os, torch, memwatch
older = [torch.ones(1000) for _ in range(3)]
with memwatch.profile():
    torch.ones(3)
    if (child := os.fork()) == 0:
        older.clear()
        torch.ones(5)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("native", ["0", "1"])
def test_a_forked_child_prints_nothing(native, fresh_python):
    """c10 does not complain of the blocks that the child frees and that were made before the profile."""
    done = fresh_python(CHILD_THAT_FREES, whole_end=True, MEMWATCH_NATIVE=native)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_start_that_fails_keeps_nothing():
    """The baseline is above the limit. Neither a watch of its storages nor a session stays."""
    there = torch.ones(1000)
    for _ in range(3):
        with pytest.raises(MemoryLimitError), memwatch.profile(limit_bytes=1):
            pass
    gc.collect()
    assert weakref.getweakrefs(there.untyped_storage()) == []
    assert [thing for thing in gc.get_objects() if type(thing) is session.Session] == []


def test_forks_of_torchscript_may_outlive_the_block():
    """Ops of other threads end after the block.

    They are not recorded, and everything that they need still exists.
    """

    @torch.jit.script
    def work(x: torch.Tensor, times: int):
        for _ in range(times):
            x = (x * 1.0001 + 1).relu()
        return x

    for _ in range(5):
        with memwatch.profile(holders=False) as prof:
            futures = [torch.jit.fork(work, torch.ones(4), 1000) for _ in range(3)]
            torch.ones(3).exp()
        del prof
        gc.collect()
        for future in futures:
            assert torch.jit.wait(future).shape == (4,)
