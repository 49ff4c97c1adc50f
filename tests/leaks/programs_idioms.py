"""Leaks through idioms of Python that training scripts are full of: loaders, retries, timers, records of errors."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import threading
import types

import torch
from leak_program import collect

KEPT = []


def tensor():
    return torch.randn(32, 8)


def loader():
    while True:
        yield tensor()


FOREVER = itertools.cycle(loader())
ITERATOR = loader()


def leak_cycle_over_a_loader():
    next(FOREVER)


def clean_cycle_over_a_loader():
    next(ITERATOR)


class KeepRecords(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


LOGGER = logging.getLogger("memwatch-test-idioms")
LOGGER.propagate = False
LOGGER.addHandler(KeepRecords())


def fails():
    activations = tensor()
    raise RuntimeError(tuple(activations.shape))


def leak_logged_exception():
    try:
        fails()
    except RuntimeError:
        LOGGER.exception("step failed")


def clean_logged_exception():
    try:
        fails()
    except RuntimeError as error:
        LOGGER.error("step failed: %s", str(error))


LAST = {"error": RuntimeError()}


def leak_chain_of_retries():
    try:
        try:
            raise LAST["error"]
        except RuntimeError:
            fails()
    except RuntimeError as error:
        LAST["error"] = error


def clean_chain_of_retries():
    try:
        fails()
    except RuntimeError as error:
        LAST["error"] = error.with_traceback(None)


class Handler:
    """An object that replaces a function, and calls it in the end."""

    def __init__(self, previous, batch):
        self.previous, self.batch = previous, batch

    def __call__(self, *args):
        return self.previous(*args)


REPORTERS = types.SimpleNamespace(report=print)


def leak_wrapped_again():
    REPORTERS.report = Handler(REPORTERS.report, tensor())


def clean_wrapped_again():
    previous = REPORTERS.report
    REPORTERS.report = Handler(previous, tensor())
    REPORTERS.report = previous


def leak_gc_callback():
    value = tensor()
    gc.callbacks.append(lambda phase, info: value is None)


def clean_gc_callback():
    value = tensor()
    gc.callbacks.append(lambda phase, info: value is None)
    gc.callbacks.pop()


def leak_timer():
    timer = threading.Timer(10_000, print, [tensor()])
    timer.daemon = True
    timer.start()


def clean_timer():
    timer = threading.Timer(10_000, print, [tensor()])
    timer.start()
    timer.cancel()
    timer.join()


@contextlib.contextmanager
def batch_in_use(batch):
    yield
    del batch


STACK = contextlib.ExitStack()


def leak_open_context():
    STACK.enter_context(batch_in_use(tensor()))


def clean_open_context():
    with batch_in_use(tensor()):
        pass


LOOP = asyncio.new_event_loop()
TASKS = set()


async def predicts():
    return tensor()


async def spawn(*, forget):
    task = LOOP.create_task(predicts())
    TASKS.add(task)
    if forget:
        task.add_done_callback(TASKS.discard)
    await task


def leak_finished_tasks():
    LOOP.run_until_complete(spawn(forget=False))


def clean_finished_tasks():
    LOOP.run_until_complete(spawn(forget=True))


async def stream():
    batch = tensor()
    while True:
        yield batch


async def first(*, close):
    batches = stream()
    await anext(batches)
    KEPT.append(batches)
    if close:
        await batches.aclose()


def leak_async_generator():
    LOOP.run_until_complete(first(close=False))


def clean_async_generator():
    LOOP.run_until_complete(first(close=True))


POOL = []


class Buffer:
    def __init__(self, pool):
        self.memory, self.pool = tensor(), pool

    def __del__(self):
        if len(self.pool) < 10**9:
            self.pool.append(self)


def leak_returned_to_a_pool():
    Buffer(POOL)


def clean_returned_to_a_pool():
    POOL.append(POOL.pop() if POOL else Buffer([]))


class View:
    def __init__(self):
        self.batch = tensor()
        self.refresh = lambda: self.batch

    def close(self):
        self.refresh = None


def leak_lambda_stored_on_self():
    View()


def clean_lambda_stored_on_self():
    View().close()


PROGRAMS = collect(
    globals(),
    [
        ("cycle_over_a_loader", "retained", ("global `FOREVER`", "reference from cycle")),
        ("logged_exception", "retained", ("attribute .handlers of Logger", "local `activations` of fails")),
        ("chain_of_retries", "retained", ("global `LAST`", "local `activations` of fails")),
        ("wrapped_again", "retained", ("global `REPORTERS`", "attribute .batch of Handler")),
        ("gc_callback", "retained", ("closure cell `value`",)),
        ("timer", "retained", ("Timer",)),
        ("open_context", "retained", ("global `STACK`", "batch_in_use")),
        ("finished_tasks", "retained", ("global `TASKS`", "Task")),
        ("async_generator", "retained", ("global `KEPT`", "local `batch`", "stream")),
        ("returned_to_a_pool", "retained", ("global `POOL`", "attribute .memory of Buffer")),
        ("lambda_stored_on_self", "cycle", ("closure cell `self`",)),
    ],
)
