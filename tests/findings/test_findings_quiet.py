"""A search for holders runs no code of the program: no property, repr or finalizer."""

from __future__ import annotations

import contextvars
import functools
import gc
import threading

import pytest
import torch
from findings_hostile import hostile, ran
from torch import nn

import memwatch

WIDE = 256
KEPT: list[object] = []
VARIABLE: contextvars.ContextVar[object] = contextvars.ContextVar("hostile")


def heavy():
    return [torch.ones(WIDE, WIDE) for _ in range(12)]


def thing():
    """Make an object that records every call of its methods, and that holds a tensor."""
    kind = hostile(object)
    made = kind.__new__(kind)
    object.__setattr__(made, "held", torch.ones(4 * WIDE, WIDE))
    return made


def as_local():
    held = thing()
    heavy()
    return held


def as_argument():
    def work(held):
        return heavy(), held

    work(thing())


def as_star_argument():
    def work(*held, **more):
        return heavy(), held, more

    work(thing(), key=thing())


def as_closure_cell():
    held = thing()

    def work():
        return heavy(), held

    work()


def as_default_argument():
    def work(held=thing()):  # noqa: B008  # that is the point
        return heavy(), held

    work()


def as_item():
    held = [{"key": (thing(),)}]
    heavy()
    return held


def as_global():
    KEPT.append(thing())
    heavy()
    KEPT.clear()


def as_module_attribute():
    model = nn.Linear(2, 2)
    model.__dict__["held"] = thing()  # torch's own __setattr__ would read its class
    model(torch.ones(2, 2))
    heavy()


def as_optimizer_state():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.held = thing()
    heavy()


def as_ctx_attribute():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.held = thing()
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    y = Double.apply(torch.ones(WIDE, WIDE, requires_grad=True))
    heavy()
    y.sum().backward()


def as_hook():
    held = thing()
    model = nn.Linear(2, 2)
    model.register_forward_hook(lambda *given: held and None if given is None else None)
    model(torch.ones(2, 2))
    heavy()


def as_tensor_hook():
    held = thing()
    x = torch.ones(WIDE, WIDE, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient, held=held: None)
    heavy()
    y.sum().backward()


def in_generator():
    def rows():
        held = thing()
        yield held

    waiting = rows()
    next(waiting)
    heavy()


def in_exception():
    def fail():
        held = thing()
        raise ValueError(held)

    error = None
    try:
        fail()
    except ValueError as caught:
        error = caught
    heavy()
    error.__traceback__ = None


def in_thread():
    ready, done = threading.Event(), threading.Event()

    def work():
        held = thing()
        ready.set()
        done.wait()
        return held

    worker = threading.Thread(target=work)
    worker.start()
    ready.wait()
    heavy()
    done.set()
    worker.join()


def in_cache():
    @functools.lru_cache
    def table(size):
        return size, thing()

    table(1)
    heavy()


def in_context_variable():
    token = VARIABLE.set(thing())
    heavy()
    VARIABLE.reset(token)


def on_evaluation_stack():
    def work(held, rest):
        return held, rest

    work(thing(), heavy())


KINDS = [
    as_local, as_argument, as_star_argument, as_closure_cell, as_default_argument, as_item, as_global,
    as_module_attribute, as_optimizer_state, as_ctx_attribute, as_hook, as_tensor_hook, in_generator, in_exception,
    in_thread, in_cache, in_context_variable, on_evaluation_stack,
]  # fmt: skip


@pytest.mark.parametrize("program", KINDS, ids=lambda program: program.__name__)
def test_samples_run_no_code_whatever_the_holder(program):
    """Special methods, properties and attribute access of an object stay unrun, wherever the object is held."""
    ran.clear()
    with memwatch.profile() as prof:
        program()
    told = list(ran)
    assert told == []
    assert prof.capture.meta["holder_samples"] > 0


def test_samples_run_no_finalizer_of_garbage():
    """An unreachable cycle whose objects have a __del__ waits for the collection that the program would have had."""

    class Loud:
        def __init__(self):
            self.me, self.held = self, torch.ones(4 * WIDE, WIDE)

        def __del__(self):
            ran.append("__del__")

    ran.clear()
    gc.collect()
    gc.disable()
    try:
        with memwatch.profile() as prof:
            Loud()
            heavy()
        told = list(ran)
    finally:
        gc.enable()
    gc.collect()
    assert told == []
    assert ran == ["__del__"]
    assert prof.capture.meta["holder_samples"] > 0


def test_samples_leave_an_enabled_collector_enabled_and_do_not_use_it():
    """Collections stay as they were: a sample neither runs one nor switches the collector."""
    counts = []

    def note(phase, info):
        counts.append(phase)

    gc.collect()
    gc.disable()
    gc.callbacks.append(note)
    try:
        with memwatch.profile() as prof:
            heavy()
            enabled = gc.isenabled()
        seen = list(counts)
    finally:
        gc.callbacks.remove(note)
        gc.enable()
    assert prof.capture.meta["holder_samples"] > 0
    assert not enabled
    assert seen == []
