"""Programs of objects that register, wait, share or are made anew, and leave nothing more behind."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import heapq
import itertools
import logging.handlers
import pickle
import random
import types
import weakref
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

NET = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
NUMBERS = itertools.count()
OPTIMIZER = None


def batch():
    return torch.randn(4, 16)


def optimizer():
    """Make it on first use: torch imports its compiler then."""
    global OPTIMIZER  # noqa: PLW0603
    if OPTIMIZER is None:
        OPTIMIZER = torch.optim.SGD(NET.parameters(), lr=0.1)
    return OPTIMIZER


def schedule_of_its_own():
    schedule = torch.optim.lr_scheduler.StepLR(optimizer(), 2)
    NET(batch()).sum().backward()
    optimizer().step()
    schedule.step()


SCALER = torch.amp.GradScaler("cpu", init_scale=2.0)
SCALER.scale(batch())  # makes what it counts with


def scaled_step_with_clipping():
    optimizer().zero_grad()
    SCALER.scale(NET(batch()).sum()).backward()
    SCALER.unscale_(optimizer())
    nn.utils.clip_grad_norm_(NET.parameters(), 1.0)
    SCALER.step(optimizer())
    SCALER.update()


def statistics_of_batch_norm():
    update_bn([batch() for _ in range(2)], NET)


def anomalies_looked_for():
    with torch.autograd.detect_anomaly(check_nan=False):
        NET(batch()).sum().backward()


NORMED = parametrizations.weight_norm(nn.Linear(16, 16))


def parametrization_that_is_cached():
    with parametrize.cached():
        NORMED(batch()).sum().item()
        NORMED(batch()).sum().item()


IMAGES = TensorDataset(torch.randn(12, 16))


def epoch_of_weighted_draws():
    sampler = WeightedRandomSampler(torch.ones(12), 8)
    return sum(images.sum().item() for (images,) in DataLoader(IMAGES, 4, sampler=sampler))


class Quantized(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.scale = float(x.detach().abs().max())
        ctx.save_for_backward(x)
        return (x / ctx.scale).round() * ctx.scale

    @staticmethod
    def backward(ctx, grad):
        return grad * (ctx.saved_tensors[0].abs() <= ctx.scale)


def straight_through():
    x = batch().requires_grad_()
    Quantized.apply(x).sum().backward()


def activations_in_half():
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().half(), lambda t: t.float()):
        loss = NET(batch()).exp().sum()
    del loss


def weights_given_to_the_call():
    weights = {name: value.detach().clone() for name, value in NET.named_parameters()}
    return torch.func.functional_call(NET, weights, (batch(),)).sum().item()


PER_LAYER = weakref.WeakKeyDictionary()


def fact_about_each_layer():
    for layer in (NET[0], nn.Linear(16, 16)):
        if layer not in PER_LAYER:
            PER_LAYER[layer] = layer.weight.detach().norm()


class Mesh:
    def __init__(self):
        self.vertices = batch()

    @functools.cached_property
    def center(self):
        return self.vertices.mean(0)


def property_computed_once():
    return Mesh().center.sum().item()


@dataclass(slots=True, weakref_slot=True)
class Job:
    image: torch.Tensor


JOBS = asyncio.Queue()
LOOP = asyncio.new_event_loop()
REQUEST = contextvars.ContextVar("request")


async def serve():
    job = await JOBS.get()
    token = REQUEST.set(job)
    try:
        return NET(REQUEST.get().image).sum().item()
    finally:
        REQUEST.reset(token)


async def served():
    task = asyncio.create_task(serve())
    await JOBS.put(Job(batch()))
    return await asyncio.wait_for(task, 10)


def request_of_a_task():
    LOOP.run_until_complete(served())


LOST = []


async def cancelled():
    task = asyncio.create_task(JOBS.get())
    await asyncio.sleep(0)
    image = batch()
    task.add_done_callback(lambda task: LOST.append(image.shape))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def task_that_is_cancelled():
    LOOP.run_until_complete(cancelled())


def pool_of_threads():
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return sum(value.sum().item() for value in pool.map(torch.exp, [batch() for _ in range(4)]))


def retried_with_a_cause():
    try:
        try:
            values = batch()
            raise ValueError(values.shape)
        except ValueError as error:
            raise RuntimeError("again") from error
    except RuntimeError:
        return batch().sum().item()


def buffers_out_of_band():
    buffers = []
    text = pickle.dumps(batch().numpy(), protocol=5, buffer_callback=buffers.append)
    with memoryview(buffers[0]) as view:
        assert len(view) == 4
    return pickle.loads(text, buffers=buffers).sum()


def method_for_one_call():
    net = nn.Linear(16, 16)
    net.forward = types.MethodType(lambda self, x: x @ self.weight.T, net)
    net(batch()).sum().item()
    del net.forward


class Emitter:
    def __init__(self):
        self.listeners = weakref.WeakSet()


class Listener:
    def __init__(self, emitter):
        self.seen = batch()
        emitter.listeners.add(self)


EMITTER = Emitter()


def listener_that_goes():
    Listener(EMITTER)
    for listener in EMITTER.listeners:
        listener.seen.zero_()


FRONT, BACK = [], [batch()]


def buffers_that_are_swapped():
    global FRONT, BACK
    FRONT, BACK = BACK, FRONT
    BACK[:] = [batch()]


BEST = []


def best_of_all():
    entry = random.random(), next(NUMBERS), batch()
    (heapq.heappush if len(BEST) < 3 else heapq.heappushpop)(BEST, entry)


MEMORY = []


def replaced_at_random():
    if len(MEMORY) < 5:
        MEMORY.append(batch())
    else:
        MEMORY[random.randrange(5)] = batch()


WINDOW = []


def window_of_a_list():
    WINDOW.append(batch())
    if len(WINDOW) > 5:
        WINDOW.pop(0)


LOG = logging.getLogger("memwatch-test-innocent")
LOG.propagate = False
LOG.addHandler(logging.handlers.MemoryHandler(4, target=logging.NullHandler()))


def records_that_are_flushed():
    LOG.warning("batch %s", batch())


POSITIONS = {}


def positions_by_length():
    length = 8 + 4 * (next(NUMBERS) % 3)
    if length not in POSITIONS:
        POSITIONS[length] = torch.arange(length)


CONTEXT = {}


def context_that_slides():
    past = torch.cat([CONTEXT.get("keys", torch.zeros(0, 16)), torch.randn(2, 16)])
    CONTEXT["keys"] = past[-6:].clone()


def hooks_of_one_look():
    seen, layers = {}, [NET[0], NET[2]]
    with contextlib.ExitStack() as stack:
        for layer in layers:
            seen[layer] = []
            stack.callback(layer.register_full_backward_hook(_note(seen[layer])).remove)
        NET(batch()).sum().backward()
    return {layer: len(grads) for layer, grads in seen.items()}


def _note(grads):
    return lambda layer, into, out: grads.append(out[0])


PARKS_ONCE = [
    fact_about_each_layer,
    buffers_that_are_swapped,
    best_of_all,
    replaced_at_random,
    window_of_a_list,
    records_that_are_flushed,
    positions_by_length,
    context_that_slides,
]
"""These fill something at first: one pass alone does not tell them from leaks."""

INNOCENT = [
    schedule_of_its_own,
    scaled_step_with_clipping,
    statistics_of_batch_norm,
    anomalies_looked_for,
    parametrization_that_is_cached,
    epoch_of_weighted_draws,
    straight_through,
    activations_in_half,
    weights_given_to_the_call,
    property_computed_once,
    request_of_a_task,
    task_that_is_cancelled,
    pool_of_threads,
    retried_with_a_cause,
    buffers_out_of_band,
    method_for_one_call,
    listener_that_goes,
    hooks_of_one_look,
]
