"""Python's own ways to hold a tensor: context managers, tasks, queues, callbacks, patterns; each with its twin."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import functools
import itertools
import queue
import types

import torch
from torch import nn

WIDE = 128
BIG = 4 * WIDE


def block(rows=WIDE):
    return torch.ones(rows, WIDE)


def heavy(count=8):
    """Allocate blocks, at once."""
    return [block() for _ in range(count)]


class Engine:
    def run_backward(self, activations, *, clear=False):
        for activation in activations:
            activation.sum()
        del activation
        if clear:
            activations.clear()
        heavy()


def engine():
    Engine().run_backward([block() for _ in range(5)])


def engine_clears():
    Engine().run_backward([block() for _ in range(5)], clear=True)


def scaled(tensor, factor):
    total = (tensor * factor).sum()
    heavy()
    return total


def scaled_box(box, factor):
    total = (box.pop() * factor).sum()
    heavy()
    return total


def starmap():
    return list(itertools.starmap(scaled, [(block(2 * WIDE), 2)]))


def starmap_box():
    return list(itertools.starmap(scaled_box, [([block(2 * WIDE)], 2)]))


class Buffered:
    def __init__(self, rows):
        self.rows = rows

    def __enter__(self):
        self.buffer = block(self.rows)
        self.buffer.sum()
        return self

    def __exit__(self, *_):
        self.buffer = None


def with_name():
    with Buffered(BIG) as context:
        heavy()
    return context


def with_little():
    with Buffered(1) as context:
        heavy()
    return context


def with_no_name():
    with Buffered(BIG):
        heavy()


def exit_stack():
    with contextlib.ExitStack() as stack:
        table = block(BIG)
        table.sum()
        stack.callback(lambda table=table: None)
        del table
        heavy()


def exit_stack_without():
    with contextlib.ExitStack() as stack:
        block(BIG).sum()
        stack.callback(lambda: None)
        heavy()


async def job(keep):
    features = block(BIG)
    features.sum()
    if not keep:
        del features
    await asyncio.sleep(0)


async def other_job():
    heavy()


async def both(keep):
    await asyncio.gather(job(keep), other_job())


def tasks():
    asyncio.run(both(keep=True))


def tasks_drop():
    asyncio.run(both(keep=False))


def walrus():
    if (mask := block(BIG)).sum() > 0:
        heavy()
    return mask.shape


def no_walrus():
    if block(BIG).sum() > 0:
        heavy()


def three_of_them():
    query, key, value = (block(BIG) for _ in range(3))
    total = query.sum() + key.sum() + value.sum()
    heavy(16)
    return total


def three_dropped():
    query, key, value = (block(BIG) for _ in range(3))
    total = query.sum() + key.sum() + value.sum()
    del query, key, value
    heavy(16)
    return total


class WithTable:
    @functools.cached_property
    def table(self):
        return block(BIG)


def cached_property():
    thing = WithTable()
    thing.table.sum()
    heavy()
    return thing


def cached_property_deleted():
    thing = WithTable()
    thing.table.sum()
    del thing.table
    heavy()
    return thing


def in_a_queue():
    waiting = queue.Queue()
    waiting.put(block(BIG))
    waiting.queue[0].sum()
    heavy()


def out_of_a_queue():
    waiting = queue.Queue()
    waiting.put(block(BIG))
    waiting.get().sum()
    heavy()


def chain_map():
    settings = collections.ChainMap({"table": block(BIG)}, {})
    settings["table"].sum()
    heavy()


def chain_map_without():
    settings = collections.ChainMap({"table": block(BIG)}, {})
    settings.pop("table").sum()
    heavy()


def namespace():
    state = types.SimpleNamespace(hidden=block(BIG))
    state.hidden.sum()
    heavy()


def namespace_emptied():
    state = types.SimpleNamespace(hidden=block(BIG))
    state.hidden.sum()
    state.hidden = None
    heavy()


class Caching(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache, self.linear = None, nn.Linear(WIDE, WIDE)

    def forward(self, x):
        self.cache = self.linear(x)
        return self.cache.mean()


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Caching()

    def forward(self, x):
        return self.inner(x)


@torch.no_grad()
def cache_of_an_inner_module():
    model = Around()
    model(block(BIG))
    heavy(12)


@torch.no_grad()
def cache_emptied():
    model = Around()
    model(block(BIG))
    model.inner.cache = None
    heavy(12)


def future():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        table = block(BIG)
        table.sum()
        promise = pool.submit(lambda given: given, table)
        del table
        promise.result()
        heavy()


def future_of_a_number():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        promise = pool.submit(lambda: 1)
        promise.result()
        block(BIG).sum()
        heavy()


def inner_rows(keep):
    table = block(BIG)
    table.sum()
    if not keep:
        del table
    yield 1
    yield 2


def outer_rows(keep):
    yield from inner_rows(keep)


def delegating_generator():
    for _ in outer_rows(keep=True):
        heavy()


def delegating_generator_drops():
    for _ in outer_rows(keep=False):
        heavy()


def in_finally():
    batch = block(BIG)
    try:
        return batch.sum()
    finally:
        heavy()


def in_finally_dropped():
    batch = block(BIG)
    try:
        total = batch.sum()
        del batch
        return total
    finally:
        heavy()


def matched():
    message = {"kind": "batch", "payload": block(BIG)}
    match message:
        case {"payload": payload}:
            payload.sum()
    heavy()


def matched_and_popped():
    message = {"kind": "batch", "payload": block(BIG)}
    match message.pop("payload"):
        case payload:
            payload.sum()
            del payload
    heavy()


def held_twice():
    batch = block(BIG)
    kept = [batch]
    batch.sum()
    go_on(batch)
    return len(kept)


def go_on(given):
    heavy()


def held_not():
    batch = block(BIG)
    batch.sum()
    del batch
    heavy()


def waiting_results():
    parts = [block().mul(index) for index in range(4)]
    heavy()
    return sum(part.sum() for part in parts)


def results_when_needed():
    heavy()
    return sum(part.sum() for part in (block().mul(index) for index in range(4)))


# name: (holding program, words that its finding must have, mended twin)
CASES = {
    "engine": (engine, ("`activations`, argument of `run_backward`",), engine_clears),
    "starmap": (starmap, ("`tensor`, argument of `scaled`",), starmap_box),
    "with a name": (with_name, ("`context.buffer`", "with_name"), with_little),
    "with no name": (with_no_name, ("buffer", "evaluation stack of `with_no_name`"), with_little),
    "exit stack": (exit_stack, ("`stack`", "exit_stack"), exit_stack_without),
    "task": (tasks, ("`features`", "`job`"), tasks_drop),
    "walrus": (walrus, ("`mask`, local variable of `walrus`",), no_walrus),
    "three": (three_of_them, ("`query`", "three_of_them"), three_dropped),
    "cached property": (cached_property, ("`thing.table`", "cached_property"), cached_property_deleted),
    "queue": (in_a_queue, ("`waiting.queue`", "in_a_queue"), out_of_a_queue),
    "chain map": (chain_map, ("`settings", "chain_map"), chain_map_without),
    "namespace": (namespace, ("`state.hidden`", "namespace"), namespace_emptied),
    "inner cache": (cache_of_an_inner_module, ("`model.inner.cache`",), cache_emptied),
    "future": (future, ("`promise", "future"), future_of_a_number),
    "yield from": (delegating_generator, ("`table`", "inner_rows"), delegating_generator_drops),
    "finally": (in_finally, ("`batch`, local variable of `in_finally`",), in_finally_dropped),
    "match": (matched, ("payload", "`matched`"), matched_and_popped),
    "two holders": (held_twice, ("`given`, argument of `go_on`", "`kept`"), held_not),
    "waiting": (waiting_results, ("`parts`, local variable of `waiting_results`",), results_when_needed),
}
