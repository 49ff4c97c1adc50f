"""memwatch keeps no object of the program alive, while the block is open and after it."""

from __future__ import annotations

import gc
import types
import weakref

import pytest
import torch
from compat_harness import INTERCEPTS
from torch import Tensor, nn

import memwatch


class Marked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x).exp().sigmoid()


def _cast() -> tuple[list[object], list[weakref.ref]]:
    net = Marked()
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.randn(4, 16)
    out = net(x)
    out.sum().backward()
    optimizer.step()
    things = [net, net.line, optimizer, x, out, net.line.weight, net.line.weight.grad]
    storages = [thing.untyped_storage() for thing in things if isinstance(thing, Tensor)]
    return things, [weakref.ref(thing) for thing in [*things, *storages]]


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
@pytest.mark.parametrize(
    "options", [{}, {"stacks": False}, {"allocator": False}, {"holders": False}], ids=str
)
def test_objects_die_inside_the_block_as_they_do_outside(intercept, options):
    """Objects that die with their last reference do so in the block. Objects that need gc need it there too."""
    _cast()
    gc.collect()
    gc.disable()
    try:
        things, plain = _cast()
        del things
        plain_dead = [reference() is None for reference in plain]
        gc.collect()
        with memwatch.profile(intercept=intercept, **options) as prof:
            things, observed = _cast()
            del things
            dead_inside = [reference() is None for reference in observed]
            gc.collect()
            after_gc = [reference() is None for reference in observed]
    finally:
        gc.enable()
    assert dead_inside == plain_dead
    assert all(after_gc)
    assert len(prof.ops) > 0


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_survivors_die_after_the_block(intercept):
    """The profile object, read in full, holds nothing of the program."""
    with memwatch.profile(intercept=intercept) as prof:
        things, references = _cast()
    prof.at_peak, prof.saved, prof.modules, prof.summary()  # reading is the point
    del things
    gc.collect()
    assert [reference() for reference in references if reference() is not None] == []
    assert prof.peak_increase_bytes > 0


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_graphs_without_backward_are_freed(intercept):
    """Saved outputs, views of them and inputs go with the last reference, in every order of leaving."""
    alive = []
    gc.disable()
    try:
        with memwatch.profile(intercept=intercept):
            for make in (torch.exp, torch.softmax, torch.sigmoid, torch.relu, torch.tanh):
                y = make(torch.randn(64, requires_grad=True) * 2, *((0,) if make is torch.softmax else ()))
                alive.append(weakref.ref(y.untyped_storage()))
                z = y.view(8, 8).pow(2)
                alive.append(weakref.ref(z.untyped_storage()))
                del y, z
            assert [reference() for reference in alive if reference() is not None] == []
            kept = torch.randn(64, requires_grad=True).exp()
            alive.append(weakref.ref(kept.untyped_storage()))
        del kept
        assert alive[-1]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_exceptions_keep_no_tensor_alive(intercept):
    """The traceback of an exception that passed through the block holds the same as without memwatch."""
    x = torch.randn(64, requires_grad=True)
    y = x.exp()
    reference = weakref.ref(y.untyped_storage())
    with pytest.raises(RuntimeError), memwatch.profile(intercept=intercept):
        y @ torch.ones(3)
    del y
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_many_blocks_leave_the_process_as_small(intercept):
    """Blocks opened again and again leave no objects of torch or memwatch behind."""

    def census() -> dict[str, int]:
        gc.collect()
        counts: dict[str, int] = {}
        for thing in gc.get_objects():
            kind = type(thing)
            if kind.__module__.partition(".")[0] in ("torch", "memwatch"):
                counts[kind.__qualname__] = counts.get(kind.__qualname__, 0) + 1
        return counts

    def block() -> None:
        with memwatch.profile(intercept=intercept):
            things, _ = _cast()
            del things

    block()
    block()
    before = census()
    for _ in range(3):
        block()
    after = census()
    assert {kind: count for kind, count in after.items() if count > before.get(kind, 0)} == {}


def _generator():
    for number in range(3):
        kept = torch.full((500, 500), float(number))
        yield kept


@types.coroutine
def _pause(value):
    yield value


async def _coroutine():
    for number in range(3):
        kept = torch.full((500, 500), float(number))
        await _pause(kept)


@pytest.mark.parametrize("make", [_generator, _coroutine])
def test_a_look_leaves_nothing_in_a_suspended_call(make):
    """The values of a suspended call die when the call binds its variable anew."""
    with memwatch.profile() as prof:
        call = make()
        value = call.send(None)
        high = torch.zeros(500, 3000)
        higher = high + 1
        reference = weakref.ref(value)
        del value
        call.send(None)
        assert reference() is None
    assert prof.meta["holder_samples"] > 0
    del high, higher


def test_a_look_leaves_nothing_in_a_running_call():
    """The values of a running call die when the call unbinds its variable."""

    def lives_after_sample() -> bool:
        value = torch.full((500, 500), 1.0)
        reference = weakref.ref(value)
        high = torch.zeros(500, 3000)
        high + 1
        del value
        return reference() is not None

    with memwatch.profile() as prof:
        lives = [lives_after_sample() for _ in range(3)]
    assert lives == [False] * 3
    assert prof.meta["holder_samples"] > 0
