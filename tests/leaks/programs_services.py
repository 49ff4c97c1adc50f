"""Leaks as services, loggers and data code make them, found by trying what real programs do."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import contextvars
import functools
import inspect
import logging.handlers
import queue
import signal
import unittest.mock
import warnings
import weakref

import torch
from leak_program import collect
from torch import nn

NET = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
KEPT = []


def tensor():
    return torch.randn(32, 8)


LISTENERS = collections.defaultdict(list)


class Callback:
    def __init__(self):
        self.batch = tensor()

    def on_epoch_end(self):
        return self.batch


def leak_event_bus():
    LISTENERS["epoch_end"].append(Callback().on_epoch_end)


def clean_event_bus():
    LISTENERS["epoch_end"].append(weakref.WeakMethod(Callback().on_epoch_end))


class Lit(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 1)
        self.outputs = []

    def training_step(self):
        loss = self.layer(torch.randn(4, 16)).pow(2).mean()
        self.outputs.append(loss)


LIT = Lit()


def leak_step_outputs():
    LIT.training_step()


def clean_step_outputs():
    LIT.training_step()
    LIT.outputs.clear()


BUFFER = logging.handlers.MemoryHandler(10**6, flushLevel=100)
LOGGER = logging.getLogger("memwatch-test-frameworks")
LOGGER.propagate = False
LOGGER.setLevel(logging.INFO)
LOGGER.addHandler(BUFFER)


def leak_buffered_log():
    LOGGER.info("step", extra={"grad": tensor()})


def clean_buffered_log():
    LOGGER.info("step", extra={"grad": tensor().norm().item()})


VARIABLE = contextvars.ContextVar("batch")


def leak_saved_context():
    context = contextvars.copy_context()
    context.run(VARIABLE.set, tensor())
    KEPT.append(context)


def clean_saved_context():
    KEPT.append(contextvars.copy_context())


LOOP = asyncio.new_event_loop()
TASKS = set()


async def waits(batch):
    await LOOP.create_future()
    return batch


async def ends(batch):
    return batch.sum().item()


async def spawn(work):
    TASKS.add(LOOP.create_task(work(tensor())))
    await asyncio.sleep(0)


def leak_pending_task():
    LOOP.run_until_complete(spawn(waits))


def clean_pending_task():
    LOOP.run_until_complete(spawn(ends))


def leak_scheduled_call():
    LOOP.call_later(10_000, print, tensor())


def clean_scheduled_call():
    LOOP.call_later(10_000, print, tensor()).cancel()


def leak_future_result():
    future = concurrent.futures.Future()
    future.set_result(tensor())
    KEPT.append(future)


def clean_future_result():
    future = concurrent.futures.Future()
    future.set_result(tensor().sum().item())
    KEPT.append(future)


def fails():
    activations = tensor()
    raise RuntimeError(tuple(activations.shape))


def future_of(work):
    future = concurrent.futures.Future()
    try:
        work()
    except RuntimeError as error:
        future.set_exception(error)
    return future


def leak_future_exception():
    KEPT.append(future_of(fails))


def clean_future_exception():
    KEPT.append(str(future_of(fails).exception(0).with_traceback(None)))


QUEUE = queue.SimpleQueue()


def leak_queue():
    QUEUE.put(tensor())


def clean_queue():
    QUEUE.put(tensor())
    QUEUE.get()


@functools.singledispatch
def handle(value):
    return value


def leak_singledispatch():
    weights = tensor()
    handle.register(type("Batch", (), {}), lambda value: weights)


def clean_singledispatch():
    weights = tensor()
    size = weights.numel()
    handle.register(Callback, lambda value: size)


def leak_finalizer_of_itself():
    layer = nn.Linear(8, 8)
    weakref.finalize(layer, lambda: layer).atexit = False


def clean_finalizer_of_itself():
    layer = nn.Linear(8, 8)
    weakref.finalize(layer, lambda: None).atexit = False


def leak_global_forward_hook():
    seen = tensor()
    nn.modules.module.register_module_forward_hook(lambda module, args, out: seen is None or None)


def clean_global_forward_hook():
    seen = tensor()
    nn.modules.module.register_module_forward_hook(lambda module, args, out: seen is None or None).remove()


def batches():
    batch = tensor()
    yield 1
    yield batch


def leak_generator_in_zip():
    pairs = zip(batches(), range(5))
    next(pairs)
    KEPT.append(pairs)


def clean_generator_in_zip():
    KEPT.append(list(zip((0,), range(5))))


ANCHOR = Callback()


def leak_weakref_callback():
    value = tensor()
    KEPT.append(weakref.ref(ANCHOR, lambda ref: value))


def clean_weakref_callback():
    KEPT.append(weakref.ref(ANCHOR, lambda ref: None))


def leak_signal_handler():
    value, before = tensor(), signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda *_: (value, before))


def clean_signal_handler():
    value = tensor()
    before = signal.signal(signal.SIGUSR1, lambda *_: value)
    signal.signal(signal.SIGUSR1, before)


STACK = contextlib.ExitStack()


def leak_exit_stack():
    STACK.callback(print, tensor())


def clean_exit_stack():
    STACK.callback(print, tensor())
    STACK.pop_all()


def leak_own_frame():
    activations = tensor()
    frame = inspect.currentframe()
    return frame.f_lineno, activations.shape


def clean_own_frame():
    activations = tensor()
    return inspect.currentframe().f_lineno, activations.shape


MOCK = unittest.mock.MagicMock()


def leak_mock_calls():
    MOCK(tensor())


def clean_mock_calls():
    MOCK(tensor())
    MOCK.reset_mock()


class Patched(nn.Module):
    def __init__(self, *, weak):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.original = weakref.WeakMethod(self.forward) if weak else self.forward

    def forward(self, x):
        return self.layer(x)


def leak_patched_forward():
    Patched(weak=False)(torch.randn(1, 8))


def clean_patched_forward():
    Patched(weak=True)(torch.randn(1, 8))


class Encoder:
    def __init__(self):
        self.weight = tensor()

    @functools.lru_cache  # noqa: B019 - the mistake under test
    def table(self, n):
        return n

    def fresh(self, n):
        return n


def leak_lru_cache_on_a_method():
    Encoder().table(3)


def clean_lru_cache_on_a_method():
    Encoder().fresh(3)


def leak_recorded_warnings():
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        warnings.warn(UserWarning("overflow", tensor()), stacklevel=1)
    KEPT.append(record)


def clean_recorded_warnings():
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        warnings.warn(UserWarning("overflow", tensor().shape), stacklevel=1)
    KEPT.append(record)


PROGRAMS = collect(
    globals(),
    [
        (
            "event_bus",
            "retained",
            ("global `LISTENERS`", "'epoch_end'", "bound method Callback.on_epoch_end"),
        ),
        ("step_outputs", "retained", ("global `LIT`", "attribute .outputs of Lit")),
        ("buffered_log", "retained", ("attribute .buffer of MemoryHandler", "attribute .grad of LogRecord")),
        ("saved_context", "retained", ("global `KEPT`", "ContextVar 'batch' of a Context")),
        ("pending_task", "retained", ("global `TASKS`", "coroutine of Task", "local `batch`", "waits")),
        ("scheduled_call", "retained", ("global `LOOP`", "attribute ._args of TimerHandle")),
        ("future_result", "retained", ("global `KEPT`", "attribute ._result of Future")),
        ("future_exception", "retained", ("attribute ._exception of Future", "local `activations` of fails")),
        ("queue", "retained", ("global `QUEUE`", "SimpleQueue")),
        ("singledispatch", "retained", ("global `handle`", "closure cell `weights`")),
        ("finalizer_of_itself", "retained", ("weakref.finalize", "closure cell `layer`")),
        ("global_forward_hook", "retained", ("_global_forward_hooks", "closure cell `seen`")),
        ("generator_in_zip", "retained", ("global `KEPT`", "zip")),
        ("weakref_callback", "retained", ("__callback__", "closure cell `value`")),
        ("signal_handler", "retained", ("handler of SIGUSR1", "closure cell")),
        ("exit_stack", "retained", ("global `STACK`", "_exit_callbacks of ExitStack")),
        ("own_frame", "cycle", ("local `frame` of leak_own_frame",)),
        ("mock_calls", "retained", ("global `MOCK`", "_mock_call_args_list")),
        ("patched_forward", "cycle", ("attribute .original of Patched", "bound method")),
        ("lru_cache_on_a_method", "retained", ("argument kept by lru_cache of Encoder.table",)),
        ("recorded_warnings", "retained", ("global `KEPT`", "args of exception UserWarning")),
    ],
)
