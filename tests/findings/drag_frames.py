"""Calls that hold tensors in every way a call can, each with the same program mended."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

WIDE = 256


def block(rows=WIDE):
    return torch.ones(rows, WIDE)


def heavy(count=8):
    """Allocate blocks, at once."""
    return [block() for _ in range(count)]


def batches(count=2):
    for index in range(count):
        yield torch.full((6 * WIDE, WIDE), float(index))


def enumerate_after_del():
    for _index, batch in enumerate(batches()):
        batch.sum()
        del batch
        heavy()


def enumerate_never():
    source = batches()
    while (batch := next(source, None)) is not None:
        batch.sum()
        del batch
        heavy()


def combine(left, right):
    return left.sum() + right


def half_made_call():
    return combine(block(4 * WIDE).mul(2), sum_of_heavy())


def sum_of_heavy():
    heavy()
    return torch.zeros(())


def call_in_order():
    right = sum_of_heavy()
    return combine(block(4 * WIDE).mul(2), right)


def score_keywords(*, images, scale):
    total = images.sum() * scale
    heavy()
    return total


def score_keywords_dropping(*, images, scale):
    total = images.sum() * scale
    del images
    heavy()
    return total


def keyword_only():
    return score_keywords(images=block(3 * WIDE), scale=2)


def keyword_only_dropped():
    return score_keywords_dropping(images=block(3 * WIDE), scale=2)


class Features(nn.Module):
    def forward(self, x):
        pooled = x.mean(0)
        del x
        heavy()
        return pooled


class BoxedFeatures(nn.Module):
    def forward(self, box):
        pooled = box.pop().mean(0)
        heavy()
        return pooled


def module_arguments():
    with torch.no_grad():
        return Features()(block(4 * WIDE))


def module_box():
    with torch.no_grad():
        return BoxedFeatures()([block(4 * WIDE)])


class Pooling(nn.Module):
    def forward(self, box):
        self.last_features = box.pop() * 2
        pooled = self.last_features.mean(0)
        heavy()
        return pooled


class PoolingForgets(nn.Module):
    def forward(self, box):
        pooled = (box.pop() * 2).mean(0)
        heavy()
        return pooled


def module_attribute():
    with torch.no_grad():
        return Pooling()([block(4 * WIDE)])


def module_no_attribute():
    with torch.no_grad():
        return PoolingForgets()([block(4 * WIDE)])


def recurse(depth, tensor):
    half = tensor * 0.5
    if depth == 0:
        heavy(4)
        return half.sum()
    return recurse(depth - 1, half)


def recurse_dropping(depth, box):
    box.append(box.pop() * 0.5)
    if depth == 0:
        total = box.pop().sum()
        heavy(4)
        return total
    return recurse_dropping(depth - 1, box)


def recursion():
    return recurse(4, block())


def recursion_boxed():
    return recurse_dropping(4, [block()])


def outer_function():
    weights = block(3 * WIDE)

    def inner():
        total = weights.sum()
        return total + sum_of_heavy()

    return inner()


def outer_function_passing():
    weights = block(3 * WIDE)
    total = weights.sum()
    del weights

    def inner():
        return total + sum_of_heavy()

    return inner()


@contextlib.contextmanager
def timing_buffer():
    buffer = block(3 * WIDE)
    buffer.sum()
    yield
    del buffer


@contextlib.contextmanager
def timing():
    buffer = block(3 * WIDE)
    buffer.sum()
    del buffer
    yield


def context_manager():
    with timing_buffer():
        heavy()


def context_manager_clean():
    with timing():
        heavy()


async def fetch_and_work():
    response = block(3 * WIDE)
    response.sum()
    await worker()


async def fetch_then_work():
    response = block(3 * WIDE)
    response.sum()
    del response
    await worker()


async def worker():
    heavy()


def drive(coroutine):
    with contextlib.suppress(StopIteration):
        coroutine.send(None)


def coroutine_local():
    drive(fetch_and_work())


def coroutine_dropped():
    drive(fetch_then_work())


async def rows_async(count):
    cache = block(3 * WIDE)
    cache.sum()
    for index in range(count):
        yield index


async def rows_async_clean(count):
    block(3 * WIDE).sum()
    for index in range(count):
        yield index


async def consume_rows(rows):
    async for _row in rows:
        heavy()


def async_generator():
    drive(consume_rows(rows_async(2)))


def async_generator_clean():
    drive(consume_rows(rows_async_clean(2)))


def suspended_source():
    table = block(3 * WIDE)
    table.sum()
    yield 1
    yield 2


def suspended_source_clean():
    block(3 * WIDE).sum()
    yield 1
    yield 2


def suspended_generator():
    rows = suspended_source()
    next(rows)
    heavy()
    next(rows)


def suspended_generator_clean():
    rows = suspended_source_clean()
    next(rows)
    heavy()
    next(rows)


# name: (holding program, words that its finding must have, mended twin)
CASES = {
    "enumerate after del": (enumerate_after_del, ("enumerate", "enumerate_after_del"), enumerate_never),
    "half-made call": (half_made_call, ("evaluation stack of `half_made_call`",), call_in_order),
    "keyword-only": (keyword_only, ("`images`, argument of", "score_keywords"), keyword_only_dropped),
    "module arguments": (module_arguments, ("`*args`, argument of", "`forward`"), module_box),
    "module attribute": (module_attribute, ("last_features", "forward"), module_no_attribute),
    "recursion": (recursion, ("`tensor`, argument of", "recurse"), recursion_boxed),
    "outer function": (outer_function, ("`weights`", "outer_function"), outer_function_passing),
    "context manager": (context_manager, ("`buffer`", "timing_buffer"), context_manager_clean),
    "coroutine": (coroutine_local, ("`response`", "fetch_and_work"), coroutine_dropped),
    "async generator": (async_generator, ("`cache`", "rows_async"), async_generator_clean),
    "suspended generator": (suspended_generator, ("`table`", "suspended_source"), suspended_generator_clean),
}
