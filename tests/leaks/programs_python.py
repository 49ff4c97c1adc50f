"""Leaks through plain Python references: names, closures, frames, threads, registries."""

from __future__ import annotations

import atexit
import collections
import contextvars
import functools
import sys
import threading
import weakref
from typing import ClassVar

import torch
from leak_program import collect

HISTORY = []
TABLE = {}
SETS = set()
QUEUE = collections.deque()


def tensor():
    return torch.randn(32, 8)


def leak_global_list():
    HISTORY.append(tensor())


def clean_global_list():
    HISTORY.append(tensor().sum().item())


def leak_global_dict():
    TABLE[len(TABLE)] = tensor()


def clean_global_dict():
    TABLE[-1] = tensor()


def leak_global_set():
    SETS.add(tensor())


def clean_global_set():
    value = tensor()
    SETS.add(value)
    SETS.discard(value)


def leak_deque():
    QUEUE.append(tensor())


RECENT = collections.deque(maxlen=4)


def clean_deque():
    RECENT.append(tensor())


class Model:
    registry: ClassVar[list[torch.Tensor]] = []

    def __init__(self):
        self.cache = []

    def method(self):
        return self


MODEL = Model()


def leak_attribute():
    MODEL.cache.append(tensor())


def clean_attribute():
    MODEL.value = tensor()


def leak_class_attribute():
    Model.registry.append(tensor())


def clean_class_attribute():
    Model.newest = tensor()


def leak_self_cycle():
    model = Model()
    model.me = model
    model.weight = tensor()


def clean_self_cycle():
    model = Model()
    model.me = weakref.ref(model)
    model.weight = tensor()


def leak_bound_method_cycle():
    model = Model()
    model.weight = tensor()
    model.which = model.method


def clean_bound_method_cycle():
    model = Model()
    model.weight = tensor()
    model.which = weakref.WeakMethod(model.method)


CALLBACKS = []


def leak_bound_method():
    model = Model()
    model.weight = tensor()
    CALLBACKS.append(model.method)


def clean_bound_method():
    model = Model()
    model.weight = tensor()
    CALLBACKS.append(weakref.WeakMethod(model.method))


def leak_closure():
    activations = tensor()
    CALLBACKS.append(lambda: activations)


def clean_closure():
    activations = tensor()
    size = activations.numel()
    CALLBACKS.append(lambda: size)


def leak_recursive_closure():
    outputs = [tensor()]

    def visit(depth):
        return visit(depth - 1) if depth else outputs

    visit(2)


def clean_recursive_closure():
    outputs = [tensor()]

    def visit(depth, visit):
        return visit(depth - 1, visit) if depth else outputs

    visit(2, visit)


def leak_partial():
    CALLBACKS.append(functools.partial(torch.add, tensor()))


def clean_partial():
    functools.partial(torch.add, tensor())


def leak_default_argument():
    value = tensor()

    def callback(batch=value):
        return batch

    CALLBACKS.append(callback)


def clean_default_argument():
    def callback(batch=None):
        return batch

    CALLBACKS.append(callback)


def collects(batch, seen=[]):  # noqa: B006 - the mistake under test
    seen.append(batch)


def leak_mutable_default():
    collects(tensor())


def clean_mutable_default():
    collects(tensor(), [])


GENERATORS = []


def batches():
    batch = tensor()
    while True:
        yield batch


def leak_generator():
    generator = batches()
    next(generator)
    GENERATORS.append(generator)


def clean_generator():
    generator = batches()
    next(generator)
    GENERATORS.append(generator)
    generator.close()


ERRORS = []


def fails():
    activations = tensor()
    raise ValueError(f"bad shape {tuple(activations.shape)}")


def leak_traceback():
    try:
        fails()
    except ValueError as error:
        ERRORS.append(error)


def clean_traceback():
    try:
        fails()
    except ValueError as error:
        ERRORS.append(str(error))


def leak_exception_cycle():
    activations = tensor()
    try:
        raise ValueError(activations.shape)
    except ValueError as error:
        err = error
    return str(err)


def clean_exception_cycle():
    activations = tensor()
    try:
        raise ValueError(activations.shape)
    except ValueError as error:
        return str(error)


def leak_sys_last_value():
    try:
        fails()
    except ValueError as error:
        error.__context__ = getattr(sys, "last_value", None)
        sys.last_value = error


def clean_sys_last_value():
    try:
        fails()
    except ValueError as error:
        error.__traceback__ = None
        sys.last_value = error


RELEASE = threading.Event()
THREADS = []


def waits(batch, started):
    started.set()
    RELEASE.wait()  # to the end of the tests, because the memory that it releases would hide what another test leaks
    return batch


def leak_thread():
    started = threading.Event()
    thread = threading.Thread(target=waits, args=(tensor(), started), daemon=True)
    thread.start()
    started.wait(10)


def clean_thread():
    thread = threading.Thread(target=lambda batch: batch, args=(tensor(),))
    thread.start()
    thread.join()


VARIABLE = contextvars.ContextVar("activations", default=())


def leak_contextvar():
    VARIABLE.set((*VARIABLE.get(), tensor()))


def clean_contextvar():
    token = VARIABLE.set((*VARIABLE.get(), tensor()))
    VARIABLE.reset(token)


LOCAL = threading.local()


def leak_thread_local():
    LOCAL.seen = [*getattr(LOCAL, "seen", []), tensor()]


def clean_thread_local():
    LOCAL.latest = tensor()


@functools.cache
def cached(key):
    return torch.randn(32, 8) + key


COUNT = iter(range(10**9))


def leak_lru_cache():
    cached(next(COUNT))


def clean_lru_cache():
    cached(-1)


@functools.lru_cache
def norm(value):
    return 1.0


def leak_lru_cache_argument():
    norm(tensor())


def clean_lru_cache_argument():
    norm.__wrapped__(tensor())


def leak_atexit():
    value = tensor()
    atexit.register(lambda: value is None)


def done():
    return None


def clean_atexit():
    atexit.register(done)
    atexit.unregister(done)


PROGRAMS = collect(
    globals(),
    [
        ("global_list", "retained", ("global `HISTORY`", "an item of a list")),
        ("global_dict", "retained", ("global `TABLE`", "key")),
        ("global_set", "retained", ("global `SETS`",)),
        ("deque", "retained", ("global `QUEUE`",)),
        ("attribute", "retained", ("global `MODEL`", "attribute .cache of Model")),
        ("class_attribute", "retained", ("class attribute .registry of class Model",)),
        ("self_cycle", "cycle", ("attribute .me of Model",)),
        ("bound_method_cycle", "cycle", ("attribute .which of Model", "bound method")),
        ("bound_method", "retained", ("global `CALLBACKS`", "bound method")),
        ("closure", "retained", ("global `CALLBACKS`", "closure cell `activations`", "leak_closure")),
        ("recursive_closure", "cycle", ("closure cell `visit`",)),
        ("partial", "retained", ("functools.partial", "argument [0]")),
        ("default_argument", "retained", ("default argument `batch`",)),
        ("mutable_default", "retained", ("default argument `seen` of collects",)),
        ("generator", "retained", ("local `batch`", "generator batches")),
        ("traceback", "retained", ("global `ERRORS`", "local `activations` of fails")),
        ("exception_cycle", "cycle", ("local `err`",)),
        ("sys_last_value", "retained", ("sys.last_value",)),
        ("thread", "retained", ("argument `batch` of waits", "thread")),
        ("contextvar", "retained", ("ContextVar 'activations'",)),
        ("thread_local", "retained", ("thread local attribute .seen",)),
        ("lru_cache", "retained", ("lru_cache of cached",)),
        ("lru_cache_argument", "retained", ("lru_cache of norm", "argument")),
        ("atexit", "retained", ("atexit callback", "closure cell `value`")),
    ],
)
