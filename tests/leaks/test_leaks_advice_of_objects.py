"""Advice for functions, finalizers and tasks that keep an object: done as it says, the leak is gone."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import types
import weakref
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from torch import nn

from memwatch import find_leaks
from memwatch.kinds.edges import EdgeKind
from memwatch.kinds.leaks import Remedy
from memwatch.words.leaks import advice

NUMBERS = itertools.count()


def data():
    return torch.ones(64)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


class Probe(nn.Module):
    """Has a layer whose hook writes to the module, by a variable that is not called `self`."""

    def __init__(self, *, weakly):
        super().__init__()
        self.net = nn.Linear(8, 8)
        me = weakref.ref(self) if weakly else self

        def hook(_module, _args, out):
            (me() if weakly else me).last = out.shape

        self.net.register_forward_hook(hook)

    def forward(self, batch):
        return self.net(batch)


def trial(*, weakly):
    probe = Probe(weakly=weakly)
    probe(torch.ones(1, 8))
    assert probe.last == (1, 8)


def test_the_variable_of_a_hook_is_named_whatever_it_is_called():
    """To delete it would make the hook fail, and a hook has no further argument."""
    [leak] = find_leaks(lambda: trial(weakly=False))
    assert leak.advice == advice(Remedy.CLOSURE_OF_OBJECT, name="me")
    assert find_leaks(lambda: trial(weakly=True)) == []


class Box:
    def __init__(self):
        self.value = data()


def test_a_registered_function_is_told_to_hold_its_object_weakly():
    """The function alone keeps the object, so a weak reference is dead unless something else keeps it."""
    functions, names = [], types.SimpleNamespace()

    def register(keep, *, weakly):
        box = Box()
        if weakly:
            reference = weakref.ref(box)
            keep(lambda: reference())
        else:
            keep(lambda: box.value)

    def under_a_new_name(function):
        setattr(names, f"callback_{next(NUMBERS)}", function)

    for keep in (functions.append, under_a_new_name):
        [leak] = find_leaks(lambda keep=keep: register(keep, weakly=False))
        assert leak.advice == advice(Remedy.CLOSURE_OF_OBJECT, name="box")
        assert find_leaks(lambda keep=keep: register(keep, weakly=True)) == []


def test_a_sum_behind_the_object_of_a_function_is_no_matter_of_the_function():
    """The function is older than the calls. To hold the object weakly would end the sum."""
    box = Box()

    def add(*, detach):
        loss = (data().requires_grad_() * 2).sum()
        box.value = box.value + (loss.detach() if detach else loss)

    [leak] = find_leaks(lambda: add(detach=False))
    assert leak.advice == advice(Remedy.GRAPH)
    box.value = data()
    assert find_leaks(lambda: add(detach=True)) == []


class Layer:
    def __init__(self):
        self.forward = torch.relu


@pytest.mark.parametrize("runs", [2, "auto"])
def test_two_calls_show_that_each_wraps_the_function_of_the_call_before(runs):
    """The path to the tensor of the first of two calls leads through one function of the other."""
    layer = Layer()

    def patch():
        inner, scale = layer.forward, data()
        layer.forward = lambda value: inner(value) * scale

    def patch_and_put_back():
        before = layer.forward
        patch()
        layer.forward = before

    [leak] = find_leaks(patch, runs=runs)
    assert leak.advice == advice(Remedy.WRAPPERS)
    layer.forward = torch.relu
    assert find_leaks(patch_and_put_back, runs=runs) == []


def test_an_object_around_another_one_of_its_class_is_no_chain():
    """Each call keeps two boxes, and no call puts the boxes of the one before deeper."""
    names = types.SimpleNamespace()

    def keep_pair(*, delete):
        outer = Box()
        outer.value, outer.inner = None, Box()
        name = f"pair_{next(NUMBERS)}"
        setattr(names, name, outer)
        if delete:
            delattr(names, name)

    [leak] = find_leaks(lambda: keep_pair(delete=False), runs=2)
    assert leak.advice == advice(Remedy.ATTRIBUTE, of_objects=True)
    assert find_leaks(lambda: keep_pair(delete=True), runs=2) == []


class Activation:
    """Has a tensor that a finalizer releases."""

    def __init__(self, how):
        self.value = data()
        FINALIZERS[how](self).atexit = False

    def release(self):
        self.value = None

    @staticmethod
    def release_pointer(address):
        assert address


FINALIZERS = {
    "method": lambda self: weakref.finalize(self, self.release),
    "function": lambda self: weakref.finalize(self, lambda: self.release()),
    "argument": lambda self: weakref.finalize(self, Activation.release, self),
    "resource": lambda self: weakref.finalize(self, self.release_pointer, self.value.data_ptr()),
}


@pytest.mark.parametrize("how", ["method", "function", "argument"])
def test_a_finalizer_that_leads_to_its_own_object_is_told_to_take_the_resource(how):
    [leak] = find_leaks(lambda: (Activation(how), None)[1])
    assert leak.advice == advice(Remedy.FINALIZER_OF_OBJECT)
    assert find_leaks(lambda: (Activation("resource"), None)[1]) == []


def test_a_finalizer_that_was_handed_a_tensor_is_told_so():
    """Its object lives on, and no method of the object is involved."""
    boxes = []

    def finalized(*arguments):
        boxes.append(Activation("resource"))
        boxes[-1].value = None
        weakref.finalize(boxes[-1], print, *arguments).atexit = False

    [leak] = find_leaks(lambda: finalized(data()))
    assert leak.advice == advice(Remedy.FINALIZER)
    assert find_leaks(lambda: finalized(64)) == []


async def watch(out, event):
    await event.wait()
    return out.sum()


async def start(*, end):
    event = asyncio.Event()
    task = asyncio.ensure_future(watch(data(), event))
    await asyncio.sleep(0)
    if end == "cancel":
        task.cancel()
    elif end == "set":
        event.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_task_that_waits_for_ever_is_named_by_the_coroutine_of_the_program():
    """What it waits for has a coroutine of Python's, whose variables nobody can delete."""
    loop = asyncio.new_event_loop()
    try:
        [leak] = find_leaks(lambda: loop.run_until_complete(start(end=None)))
        assert leak.advice == advice(Remedy.TASK)
        assert (leak.cut.owner.name, Path(leak.cut.file).name) == ("watch", Path(__file__).name)
        for end in ("cancel", "set"):
            assert find_leaks(lambda end=end: loop.run_until_complete(start(end=end))) == []
    finally:
        loop.close()


async def waits(batch):
    await asyncio.sleep(0)
    return batch


def test_a_coroutine_of_no_task_is_told_to_be_closed():
    kept = []

    def begin(*, close):
        kept.append(waits(data()))
        kept[-1].send(None)
        if close:
            kept[-1].close()

    [leak] = find_leaks(lambda: begin(close=False))
    assert leak.advice == advice(Remedy.GENERATOR)
    assert leak.cut.kind is EdgeKind.ITEM
    assert find_leaks(lambda: begin(close=True)) == []


def batches(batch):
    yield 1
    yield batch


def test_generators_that_an_old_task_collects_do_not_end_with_the_task():
    """The task is a server, and runs on."""
    loop, asked = asyncio.new_event_loop(), asyncio.Queue()

    async def serve():
        kept = []
        while (close := await asked.get()) is not None:
            kept.append(batches(data()))
            next(kept[-1])
            if close:
                kept[-1].close()

    async def ask(*, close):
        asked.put_nowait(close)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    task = loop.create_task(serve())
    try:
        [leak] = find_leaks(lambda: loop.run_until_complete(ask(close=False)))
        assert leak.advice == advice(Remedy.GENERATOR)
        assert find_leaks(lambda: loop.run_until_complete(ask(close=True))) == []
        asked.put_nowait(None)
        loop.run_until_complete(task)
    finally:
        loop.close()


def test_contexts_that_are_kept_grow_though_the_variable_is_reset():
    variable = contextvars.ContextVar("variable")
    kept = []

    def step(*, drop):
        token = variable.set(data())
        kept.append(contextvars.copy_context())
        variable.reset(token)
        if drop:
            kept.clear()

    [leak] = find_leaks(lambda: step(drop=False))
    assert leak.advice == advice(Remedy.KEPT_CONTEXT)
    assert "reset" not in leak.advice
    assert find_leaks(lambda: step(drop=True)) == []


def test_a_variable_of_the_running_context_is_still_to_be_reset():
    variables = []

    def step(*, reset):
        variables.append(contextvars.ContextVar("variable"))
        token = variables[-1].set(data())
        if reset:
            variables[-1].reset(token)

    [leak] = contextvars.copy_context().run(find_leaks, lambda: step(reset=False))
    assert leak.advice == advice(Remedy.CONTEXT_VARIABLE)
    assert contextvars.copy_context().run(find_leaks, lambda: step(reset=True)) == []


class Slotted:
    __slots__ = ("me", "value")

    def __init__(self):
        self.value = data()


class SlottedWeakly(Slotted):
    __slots__ = ("__weakref__",)


def refers_to_itself(cls, *, weakly=False):
    made = cls()
    made.me = weakref.ref(made) if weakly else made


def test_a_class_with_slots_is_told_to_allow_weak_references():
    """Without `__weakref__` among its slots, `weakref.ref` raises TypeError."""
    with pytest.raises(TypeError):
        refers_to_itself(Slotted, weakly=True)
    [leak] = find_leaks(lambda: refers_to_itself(Slotted))
    assert leak.advice == advice(Remedy.ATTRIBUTE_IN_CYCLE, strong="Slotted")
    assert '`"__weakref__"` to the `__slots__` of `Slotted`' in leak.advice
    [leak] = find_leaks(lambda: refers_to_itself(SlottedWeakly))
    assert leak.advice == advice(Remedy.ATTRIBUTE_IN_CYCLE)
    assert find_leaks(lambda: refers_to_itself(SlottedWeakly, weakly=True)) == []


def test_a_set_of_slotted_objects_is_told_so_too():
    objects = set()
    [leak] = find_leaks(lambda: objects.add(Slotted()))
    assert leak.advice == advice(Remedy.MEMBER, strong="Slotted")
    objects = weakref.WeakSet()
    assert find_leaks(lambda: objects.add(SlottedWeakly())) == []


def finished(value):
    future = Future()
    future.set_result(value)
    return future


@pytest.mark.parametrize(
    ("make", "is_of_tensors"),
    [
        (lambda: nn.Linear(8, 8), False),
        (lambda: finished(data()), False),
        (lambda: (torch.ones(8, requires_grad=True) * data()[:8].clone()).sum().grad_fn, False),
        (data, True),
        (lambda: {"loss": (data(), 1)}, True),
    ],
    ids=["module", "future", "node", "tensor", "dictionary"],
)
def test_only_tensors_are_to_become_numbers(make, is_of_tensors):
    kept = []
    [leak] = find_leaks(lambda: kept.append(make()))
    assert ("store numbers (`.mean().item()`)" in leak.advice) is is_of_tensors
    assert leak.advice.startswith(advice(Remedy.ITEM, of_objects=not is_of_tensors))

    def bounded():
        kept[:] = [make()]

    assert find_leaks(bounded) == []


SHELF: list[object] = []


class Book:
    """Has an attribute that is called as the global variable with all books."""

    def __init__(self):
        self.SHELF, self.text = None, data()

    def place(self):
        return self.SHELF


class ListedBook(Book):
    """Puts itself into the variable."""

    def __init__(self):
        super().__init__()
        SHELF.append(self)


@pytest.mark.parametrize(
    ("add", "is_registry"), [(lambda: SHELF.append(Book()), False), (ListedBook, True)], ids=["added", "adds"]
)
def test_an_attribute_called_as_the_variable_makes_no_registry_of_it(add, is_registry):
    """Only what uses the variable itself may have put itself there."""
    [leak] = find_leaks(add)
    SHELF.clear()
    assert (leak.advice == advice(Remedy.REGISTRY)) is is_registry
    assert is_registry or leak.advice == advice(Remedy.ITEM, of_objects=True)


def test_parameter_groups_are_to_be_removed_from_their_optimizer():
    optimizer = torch.optim.SGD([nn.Parameter(data())])

    def step(*, remove):
        optimizer.add_param_group({"params": [nn.Parameter(data())]})
        if remove:
            optimizer.param_groups.pop()

    [leak] = find_leaks(lambda: step(remove=False))
    assert leak.advice == advice(Remedy.OPTIMIZER_STATE)
    assert find_leaks(lambda: step(remove=True)) == []
