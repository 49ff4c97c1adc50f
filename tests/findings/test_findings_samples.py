"""Samples leave the program alone: they do not run its code or prolong a life. They come in time."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import sys
import threading
import weakref

import pytest
import torch
from findings_hostile import hostile, ran
from torch import nn

import memwatch
from memwatch.capture.paths import read_paths

WIDE = 256


class HostileTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        ran.append(f"__torch_function__ {func}")
        return super().__torch_function__(func, types, args, kwargs or {})

    def __repr__(self, *args, **kwargs):
        ran.append("__repr__ of a tensor")
        return "tensor"


def heavy(count=12):
    return [torch.ones(WIDE, WIDE) for _ in range(count)]


@pytest.mark.parametrize("base", [object, list, dict, tuple, set, Exception])
def test_samples_run_no_code_of_the_objects_they_meet(base):
    """Neither attribute access nor any special method or property of a hostile class runs."""
    kind = hostile(base)
    thing = kind.__new__(kind)
    tensor = torch.ones(4 * WIDE, WIDE)
    if base is list:
        list.append(thing, tensor)
    elif base is dict:
        dict.__setitem__(thing, "key", tensor)
    else:
        object.__setattr__(thing, "held", tensor)
    del tensor
    ran.clear()
    with memwatch.profile() as prof:
        heavy()
    assert ran == []
    assert prof.capture.meta["holder_samples"] > 0
    assert not any("Hostile" in finding.holder for finding in prof.findings)


def test_samples_run_no_torch_function():
    """A sample does not call a tensor subclass in a variable."""
    held = torch.ones(WIDE, WIDE).as_subclass(HostileTensor)
    ran.clear()
    with memwatch.profile():
        heavy()
    told = list(ran)
    assert told == []
    del held


def test_samples_run_no_unpack_hook_and_no_node_property():
    """Saved tensors are known from their packs; the unpack hook runs in backward only."""
    x = torch.ones(WIDE, WIDE, requires_grad=True)
    with (
        memwatch.profile() as prof,
        torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: tensor, lambda tensor: ran.append("unpack") or tensor
        ),
    ):
        ran.clear()
        y = x.exp().sum()
        heavy()
        assert ran == []
        y.backward()
        assert ran == ["unpack"]
    assert prof.capture.meta["holder_samples"] > 0


def test_samples_prolong_no_life():
    """A dropped value dies at once, though a sample saw it in a frame, generator, exception or closure."""

    def rows():
        table = torch.ones(2 * WIDE, WIDE)
        gone.append(weakref.ref(table))
        yield 1

    gone: list[weakref.ref] = []
    gc.collect()
    gc.disable()
    try:
        with memwatch.profile():
            local = torch.ones(2 * WIDE, WIDE)
            gone.append(weakref.ref(local))
            boxed = [torch.ones(2 * WIDE, WIDE)]
            gone.append(weakref.ref(boxed[0]))
            generator = rows()
            next(generator)
            score = scorer(torch.ones(2 * WIDE, WIDE))
            gone.append(weakref.ref(score.__closure__[0].cell_contents))
            error = None
            try:
                failing(gone)
            except ValueError as caught:
                error = caught
            heavy(32)
            del local, boxed, generator, score, error
            assert [reference() is None for reference in gone] == [True] * 5
    finally:
        gc.enable()


def scorer(kept):
    def score():
        return kept.sum()

    return score


def failing(gone):
    lost = torch.ones(2 * WIDE, WIDE)
    gone.append(weakref.ref(lost))
    raise ValueError("no data")


def test_samples_leave_no_garbage():
    """After a block nothing is left for the garbage collector that a sample made."""
    heavy()
    gc.collect()
    gc.disable()
    try:
        with memwatch.profile():
            for batch in (torch.ones(4 * WIDE, WIDE) for _ in range(2)):
                heavy()
                del batch
        before = {id(obj) for obj in gc.get_objects() if isinstance(obj, torch.Tensor)}
        gc.collect()
        after = {id(obj) for obj in gc.get_objects() if isinstance(obj, torch.Tensor)}
    finally:
        gc.enable()
    assert before == after


def test_with_step_a_sample_is_taken_at_the_peak_op_of_the_iteration_before():
    """From the second iteration on, one sample lies exactly at the op that made the peak."""
    model = nn.Sequential(nn.Linear(WIDE, 4 * WIDE), nn.ReLU(), nn.Linear(4 * WIDE, WIDE))
    with memwatch.profile() as prof:
        for _ in range(4):
            with torch.no_grad():
                model(torch.ones(8 * WIDE, WIDE)).sum()
            prof.step()
    sampled = set(prof.capture.tables["holders"]["op"].tolist())
    peak_op = int(prof.ops[prof.ops["step"] == 2]["peak_bytes"].idxmax())
    assert any(abs(op - peak_op) <= 1 for op in sampled)


def in_a_task(kept):
    async def holding():
        features = torch.ones(4 * WIDE, WIDE)
        features.sum()
        await asyncio.sleep(0)
        kept.append(features.shape)

    async def working():
        heavy()

    async def both():
        await asyncio.gather(holding(), working())

    asyncio.run(both())


def test_many_context_variables_hide_nothing():
    """Every task refers to a context, and libraries (torch's own settings) put hundreds of values in it."""
    context = contextvars.copy_context()
    for number in range(2000):
        context.run(contextvars.ContextVar(f"setting{number}").set, [number])
    with memwatch.profile() as prof:
        context.run(in_a_task, [])
    assert any("`features`" in finding.holder for finding in prof.findings), prof.findings


def branching(depth):
    return {"rest": [branching(depth - 1) for _ in range(4)] if depth else []}


def with_a_config(config, depth):
    return with_a_config(config, depth - 1) if depth else heavy()


def test_what_many_calls_pass_on_hides_nothing():
    """If a search reaches its limit, it goes on once all calls have been searched."""
    config = branching(5)
    leaf = config
    while leaf["rest"]:
        leaf = leaf["rest"][-1]
    leaf["rest"].append(kept := [])
    del leaf
    with memwatch.profile() as prof:
        kept.append(torch.ones(4 * WIDE, WIDE))
        kept[0].sum()
        del kept
        with_a_config(config, 4)
    assert any("`config" in finding.holder for finding in prof.findings), prof.findings


def with_a_table(table, kept):
    kept.append(torch.ones(4 * WIDE, WIDE))
    kept[0].sum()
    return heavy()


@pytest.mark.parametrize("kind", [list, tuple, lambda items: dict(enumerate(items))])
def test_a_long_container_hides_no_variable(kind):
    """A search has a limit: containers of thousands of items are searched last."""
    kept = []
    with memwatch.profile() as prof:
        with_a_table(kind([[number] for number in range(4000)]), kept)
    assert any("`kept`" in finding.holder for finding in prof.findings), prof.findings


def test_the_summary_says_that_a_search_came_to_its_limit():
    with memwatch.profile() as prof:
        with_a_table([[[number]] for number in range(3000)], [])
    assert "reached the time limit" in " ".join(prof.summary(color=False).split())
    with memwatch.profile() as prof:
        with_a_table([[[number]] for number in range(10)], [])
    assert "reached the time limit" not in " ".join(prof.summary(color=False).split())


def test_other_threads_may_change_what_is_searched():
    """A dictionary that grows while a sample goes through it does not end the sample."""
    table, stop = {number: torch.ones(1) for number in range(3000)}, threading.Event()

    def change():
        for number in itertools.count(len(table)):
            if stop.is_set():
                return
            table[number] = number
            table.pop(number - 50, None)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(3):
            with memwatch.profile() as prof:
                with_a_table(table, [])
            assert [text for kind, text in prof.notes if kind == "recorder"] == []
            assert prof.meta["holder_samples"] > 1, prof.timeline
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval_s)


def test_what_is_too_small_to_be_searched_for_is_not_said_to_be_held_by_anyone():
    small = torch.ones(2)
    with memwatch.profile() as prof:
        with_a_table([], [])
    (life,) = prof.storages.index[prof.storages["address"] == small.data_ptr()]
    assert prof.at_peak.loc[life, "holder_kind"] == "not looked for"


@pytest.mark.parametrize("base_bytes", [1 << 20, 3 << 30])
def test_what_is_live_before_the_block_does_not_make_samples_rare(base_bytes):
    """The findings of a small program are right in a large process.

    `base` takes no memory, because its pages stay untouched.
    """
    base = torch.empty(base_bytes // 4)
    with memwatch.profile() as prof:
        with_a_table([], [])
    assert any("`kept`" in finding.holder for finding in prof.findings), prof.findings
    del base


@pytest.mark.parametrize("intercept", ["key", "mode", "key-python", "mode-python"], indirect=True)
def test_what_dies_in_the_block_does_not_hide_what_it_makes(intercept):
    """As with the gradients of the step before: live bytes may stay below the bytes at entry all the time."""
    before = [torch.empty(1 << 24)]
    with memwatch.profile(intercept=intercept) as prof:
        before.clear()
        with_a_table([], [])
    assert prof.peak_bytes == prof.baseline_bytes
    assert any(path[0].name == "kept" for path in read_paths(prof.capture).values())
