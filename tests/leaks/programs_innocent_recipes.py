"""Recipes of training and serving that keep tensors from call to call, and never more of them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import queue
import threading

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

NET = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
NUMBERS = itertools.count()


def batch():
    return torch.randn(4, 16)


def gradients_over_two_batches():
    if next(NUMBERS) % 2:
        NET.zero_grad(set_to_none=True)
    NET(batch()).sum().backward()


PREFETCHED = [batch()]


def prefetched_batch():
    PREFETCHED.append(batch())
    NET(PREFETCHED.pop(0)).sum().item()


SLOTS = [batch() for _ in range(3)]


def slots_by_turns():
    SLOTS[next(NUMBERS) % 3] = batch()


AVERAGED = AveragedModel(NET, multi_avg_fn=None)


def averaged_model():
    AVERAGED.update_parameters(NET)


TARGET = copy.deepcopy(NET)


def target_network():
    TARGET.load_state_dict(NET.state_dict())


BEST = {"loss": float("inf"), "weights": copy.deepcopy(NET.state_dict())}


def best_checkpoint():
    if next(NUMBERS) % 3 == 0:
        BEST["weights"] = copy.deepcopy(NET.state_dict())


def cache_of_one_request():
    keys = torch.zeros(1, 16)
    for _ in range(3):
        keys = torch.cat([keys, batch()])
    return keys.sum().item()


QUEUE = queue.Queue()


def producer_and_consumer():
    thread = threading.Thread(target=lambda: QUEUE.put(batch()))
    thread.start()
    QUEUE.get().sum().item()
    thread.join()


LOOP = asyncio.new_event_loop()


async def predict():
    await asyncio.sleep(0)
    return NET(batch()).sum().item()


async def gathered():
    return await asyncio.gather(predict(), predict())


def finished_coroutines():
    LOOP.run_until_complete(gathered())


@contextlib.contextmanager
def recorded(module):
    outputs = []
    handle = module.register_forward_hook(lambda module, args, out: outputs.append(out))
    try:
        yield outputs
    finally:
        handle.remove()


def hook_within_a_block():
    with recorded(NET[0]) as outputs:
        NET(batch())
        return outputs[0].sum().item()


PREDICTIONS = []


def metric_of_an_epoch():
    PREDICTIONS.extend(NET(batch()).detach() for _ in range(3))
    mean = torch.cat(PREDICTIONS).mean().item()
    PREDICTIONS.clear()
    return mean


WORKSPACE = torch.empty(4, 16)


def result_in_a_workspace():
    torch.mul(batch(), 2, out=WORKSPACE)


def retried():
    for attempt in range(2):
        try:
            value = batch()
            if not attempt:
                raise ValueError(value.shape)
        except ValueError:
            continue
        return value.sum().item()
    return None


LOGGED = []


def emptied_on_every(nth):
    """Return a function that keeps what its calls make, and drops it all on every n-th."""
    calls = itertools.count(1)

    def call():
        LOGGED.append(torch.ones(16))
        if next(calls) % nth == 0:
            LOGGED.clear()

    return call


INNOCENT = [
    gradients_over_two_batches,
    prefetched_batch,
    slots_by_turns,
    averaged_model,
    target_network,
    best_checkpoint,
    cache_of_one_request,
    producer_and_consumer,
    finished_coroutines,
    hook_within_a_block,
    metric_of_an_epoch,
    result_in_a_workspace,
    retried,
]
