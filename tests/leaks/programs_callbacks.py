"""Leaks through what is registered to be called later, and through what waits: futures, queues, filters, hooks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import heapq
import itertools
import logging
import operator
import queue
import sys
import types

import torch
from leak_program import collect
from torch import nn
from torch.autograd.graph import get_gradient_edge

NET = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
W = torch.randn(32, 32, requires_grad=True)
NUMBERS = itertools.count()


def tensor():
    return torch.randn(32, 8)


LOOP = asyncio.new_event_loop()
SHUTDOWN = LOOP.create_future()
for _ in range(2):  # the first callback has a place of its own
    SHUTDOWN.add_done_callback(id)


def leak_callback_of_a_pending_future():
    batch = tensor()
    SHUTDOWN.add_done_callback(lambda future: batch.zero_())


def clean_callback_of_a_pending_future():
    batch = tensor()
    SHUTDOWN.add_done_callback(callback := lambda future: batch.zero_())
    SHUTDOWN.remove_done_callback(callback)


STOPPED = concurrent.futures.Future()


def leak_callback_of_an_unfinished_future():
    batch = tensor()
    STOPPED.add_done_callback(lambda future: batch.zero_())


def clean_callback_of_an_unfinished_future():
    batch, finished = tensor(), concurrent.futures.Future()
    finished.add_done_callback(lambda future: batch.zero_())
    finished.set_result(None)


JOBS = asyncio.Queue()


def leak_unread_queue():
    JOBS.put_nowait(tensor())


def clean_unread_queue():
    JOBS.put_nowait(tensor())
    JOBS.get_nowait()


WAITING = queue.PriorityQueue()


def leak_priority_queue():
    WAITING.put((-next(NUMBERS), tensor()))


def clean_priority_queue():
    WAITING.put((-next(NUMBERS), tensor()))
    WAITING.get()


FRONTIER = []


def leak_frontier_of_a_search():
    heapq.heappush(FRONTIER, (next(NUMBERS), tensor()))


def clean_frontier_of_a_search():
    heapq.heappush(FRONTIER, (-1, tensor()))
    heapq.heappop(FRONTIER)


LOGGER = logging.getLogger("memwatch-test-callbacks")
LOGGER.propagate = False


def leak_log_filters():
    norms = tensor()
    LOGGER.addFilter(lambda record: norms is not None)


def clean_log_filters():
    norms = tensor()
    LOGGER.addFilter(only := lambda record: norms is not None)
    LOGGER.removeFilter(only)


class Latest(logging.Handler):
    def emit(self, record):
        self.last = record.args


def leak_logger_per_run():
    logger = logging.getLogger(f"memwatch-test-run.{next(NUMBERS)}")
    logger.propagate = False
    logger.addHandler(Latest())
    logger.warning("grad %s", tensor())


RUN = logging.getLogger("memwatch-test-run")
RUN.propagate = False


def clean_logger_per_run():
    RUN.addHandler(handler := Latest())
    RUN.warning("grad %s", tensor())
    RUN.removeHandler(handler)


def shown_with(batch, previous):
    def show(value):
        previous((batch.shape, value))

    return show


def leak_display_hook():
    sys.displayhook = shown_with(tensor(), sys.displayhook)


def clean_display_hook():
    previous = sys.displayhook
    sys.displayhook = shown_with(tensor(), previous)
    sys.displayhook = previous


STEPS = []


def leak_undo_stack():
    before = tensor()
    STEPS.append(operator.methodcaller("copy_", before))


def clean_undo_stack():
    before = tensor()
    STEPS.append(operator.methodcaller("copy_", before))
    STEPS.pop()(tensor())


class Bus:
    def __init__(self):
        self.handlers = {}

    def once(self, event, handler):
        self.handlers.setdefault(event, set()).add(handler)

    def emit(self, event):
        for handler in self.handlers.pop(event, ()):
            handler()


BUS = Bus()


def leak_once_that_never_comes():
    BUS.once("restart", tensor().zero_)


def clean_once_that_never_comes():
    BUS.once("step", tensor().zero_)
    BUS.emit("step")


OPTIMIZER = None


def optimizer():
    """Make it on first use: torch imports its compiler then."""
    global OPTIMIZER  # noqa: PLW0603
    if OPTIMIZER is None:
        OPTIMIZER = torch.optim.SGD(NET.parameters(), lr=0.1)
    return OPTIMIZER


def leak_optimizer_step_hook():
    before = tensor()
    optimizer().register_step_post_hook(lambda *args: before is None)


def clean_optimizer_step_hook():
    before = tensor()
    optimizer().register_step_post_hook(lambda *args: before is None).remove()


def leak_parameter_hook_per_call():
    mask = torch.rand(32, 32)
    W.register_hook(lambda grad: grad * mask)


def clean_parameter_hook_per_call():
    mask = torch.rand(32, 32)
    W.register_hook(lambda grad: grad * mask).remove()


def leak_full_backward_hook():
    scale = tensor()
    NET[2].register_full_backward_hook(lambda module, into, out: (into[0] * scale.max(),))


def clean_full_backward_hook():
    scale = tensor()
    NET[2].register_full_backward_hook(lambda module, into, out: (into[0] * scale.max(),)).remove()


EDGES = []


def leak_gradient_edges():
    EDGES.append(get_gradient_edge(W.exp().sin()))


def clean_gradient_edges():
    EDGES.append(get_gradient_edge(W.exp().sin()).node.name())


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.saved_log_probs = nn.Linear(16, 3), []

    def act(self, state):
        chosen = torch.distributions.Categorical(logits=self.layer(state))
        action = chosen.sample()
        self.saved_log_probs.append(chosen.log_prob(action))
        return action


POLICY = Policy()


def leak_policy_log_probs():
    POLICY.act(torch.randn(16))


def clean_policy_log_probs():
    POLICY.act(torch.randn(16))
    del POLICY.saved_log_probs[:]


def run(*, forget):
    future, batch = concurrent.futures.Future(), tensor()
    try:
        raise RuntimeError(tuple(batch.shape))
    except RuntimeError as error:
        future.set_exception(error)
    if forget:
        del future


def leak_future_of_its_own_frame():
    run(forget=False)


def clean_future_of_its_own_frame():
    run(forget=True)


def consumer():
    me = yield
    batch = tensor()
    yield me, batch


def leak_generator_of_itself():
    sink = consumer()
    next(sink)
    sink.send(sink)


def clean_generator_of_itself():
    sink = consumer()
    next(sink)
    sink.send(sink)
    sink.close()


def rebind(model, *, forget):
    plain = model.forward

    def traced(self, x):
        return plain(x)

    model.forward = types.MethodType(traced, model)
    model(torch.randn(2, 8))
    if forget:
        del model.forward


def leak_forward_put_in_place():
    rebind(nn.Linear(8, 8), forget=False)


def clean_forward_put_in_place():
    rebind(nn.Linear(8, 8), forget=True)


PROGRAMS = collect(
    globals(),
    [
        ("callback_of_a_pending_future", "retained", ("global `SHUTDOWN`", "closure cell `batch`")),
        (
            "callback_of_an_unfinished_future",
            "retained",
            ("global `STOPPED`", "_done_callbacks of Future", "closure cell `batch`"),
        ),
        ("unread_queue", "retained", ("global `JOBS`", "_queue of Queue")),
        ("priority_queue", "retained", ("global `WAITING`", "queue of PriorityQueue")),
        ("frontier_of_a_search", "retained", ("global `FRONTIER`",)),
        ("log_filters", "retained", ("attribute .filters of Logger", "closure cell `norms`")),
        ("logger_per_run", "retained", ("attribute .last of Latest",)),
        ("display_hook", "retained", ("displayhook", "closure cell `batch`")),
        ("undo_stack", "retained", ("global `STEPS`", "methodcaller")),
        ("once_that_never_comes", "retained", ("global `BUS`", "'restart'")),
        ("optimizer_step_hook", "retained", ("hook", "closure cell `before`")),
        ("parameter_hook_per_call", "retained", ("hook", "closure cell `mask`")),
        ("full_backward_hook", "retained", ("_backward_hooks", "closure cell `scale`")),
        ("gradient_edges", "retained", ("global `EDGES`",)),
        ("policy_log_probs", "retained", ("global `POLICY`", "attribute .saved_log_probs of Policy")),
        ("future_of_its_own_frame", "cycle", ("local `future` of run",)),
        ("generator_of_itself", "cycle", ("local `me`", "generator consumer")),
        ("forward_put_in_place", "cycle", ("attribute .forward of Linear",)),
    ],
)
