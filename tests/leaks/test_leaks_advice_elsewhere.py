"""Each advice, taken to the letter in a program that was not written for it: every change that it offers ends the leak.

The programs follow questions in public threads. `take` is the change of the advice that a program makes, in words of
the advice; without one it leaks.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
import functools
import io
import itertools
import logging
import pickle
import signal
import sys
import threading
import traceback
import types
import weakref
from unittest import mock

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from memwatch.kinds.leaks import Remedy
from memwatch.leaks import find_leaks

ENCODER = nn.Linear(16, 16)
WEIGHT = nn.Parameter(torch.ones(16, 16))
COUNT = itertools.count()
KEPT: dict[str, list] = collections.defaultdict(list)


def images():
    return torch.ones(4, 16)


def bounded(name, size=2):
    """Return a container of limited size under a name."""
    if type(KEPT[name]) is not collections.deque:
        KEPT[name] = collections.deque(maxlen=size)
    return KEPT[name]


def first_prediction(take):
    with torch.no_grad():
        predictions = ENCODER(images())
    kept = {"clone": predictions[0].clone(), "number": predictions[0].mean().item()}.get(take, predictions[0])
    if take == "clone":
        bounded("first").append(kept)
    else:
        KEPT["predictions"].append(kept)


def score_of_a_batch(take):
    score = ENCODER(images())[0]
    if take == "detach and clone":
        bounded("score").append(score.detach().clone())
    else:
        KEPT["scores"].append(score.sum().item() if take == "number" else score)


class Decoder:
    def __init__(self):
        self.keys = torch.ones(1, 16)


DECODER, RESET, NEWEST = Decoder(), Decoder(), Decoder()


def decode(take):
    if take == "reset":
        RESET.keys = torch.ones(1, 16)
        RESET.keys = torch.cat([RESET.keys, torch.ones(1, 16)])
    elif take == "newest part":
        NEWEST.keys = torch.cat([NEWEST.keys, torch.ones(1, 16)])[-4:].clone()
    else:
        DECODER.keys = torch.cat([DECODER.keys, torch.ones(1, 16)])


def capture_features(take):
    features = []
    layer = KEPT["layers" + take][0] if KEPT["layers" + take] else nn.Linear(16, 16)
    KEPT["layers" + take][:] = [layer]
    if take == "once":
        if not KEPT["registered"]:
            KEPT["registered"].append(layer.register_forward_hook(lambda *_: None))
        return
    handle = layer.register_forward_hook(lambda _module, _inputs, output: features.append(output.detach()))
    layer(images())
    if take == "remove":
        handle.remove()


class Monitored(nn.Module):
    def __init__(self, take):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        me = weakref.ref(self)
        hooks = {"function": lambda module, *_: module.training, "weakref": lambda *_: me().training}
        handle = self.fc.register_forward_hook(hooks.get(take, self.record))
        self.fc(torch.ones(1, 4))
        if take == "remove":
            handle.remove()

    def record(self, *_):
        self.training  # noqa: B018


def clip_by_own_norm(take):
    activations = ENCODER(images()).tanh()
    me = weakref.ref(activations)
    hooks = {"gradient": lambda grad: grad / grad.norm(), "weakref": lambda grad: grad / me().norm()}
    handle = activations.register_hook(hooks.get(take, lambda grad: grad / activations.norm()))
    activations.sum().backward()
    ENCODER.zero_grad()
    if take == "remove":
        handle.remove()


def log_loss_at_backward(take):
    loss = ENCODER(images()).exp()
    seen = []
    hook = (lambda *grads: seen.append(len(grads))) if take == "arguments" else (lambda *_: seen.append(loss))
    handle = loss.grad_fn.register_hook(hook)
    if take == "remove":
        handle.remove()


def step_in_backward(take):
    layer = nn.Linear(4, 4, bias=False)
    weight = layer.weight
    me = weakref.ref(weight)
    hooks = {
        "its parameter": lambda parameter: parameter.numel() and None,
        "weakref": lambda _: me().numel() and None,
    }
    weight.register_post_accumulate_grad_hook(hooks.get(take, lambda _: weight.numel() and None))
    layer(torch.ones(1, 4)).sum().backward()


def tag_a_node(take):
    output = ENCODER(images()).sigmoid()
    tags = {"weakref": weakref.ref(output), "detached": output.detach().clone()}
    output.grad_fn.metadata["output"] = tags.get(take, output)


def compress_saved(take):
    with saved_tensors_hooks(lambda tensor: tensor.detach() if take else tensor, lambda packed: packed):
        ENCODER(images()).exp()


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, take):
        y = x.sigmoid()
        if take == "save_for_backward":
            ctx.save_for_backward(y)
        else:
            ctx.gate = y
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Flatten(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, take):
        y = x * 2
        saved = {"output": y, "detached": y.detach().view(-1)}.get(take)
        ctx.save_for_backward(y.view(-1) if saved is None else saved)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def gated(take):
    Gate.apply(ENCODER(images()), take)


def flattened(take):
    Flatten.apply(ENCODER(images()), take)


def arrays_for_a_plot(take):
    curve = torch.ones(64).numpy()
    if take == "limit":
        bounded("curves").append(curve)
    else:
        kept = {"number": curve.mean().item(), "copy": None}
        if take == "copy":
            bounded("points").append(curve[:2].copy())
        else:
            KEPT["curves"].append(kept.get(take, curve))


def epochs(take):
    loader = [torch.ones(16) for _ in range(2)]

    def anew():
        while True:
            yield from iter([torch.ones(16), torch.ones(16)])

    if not KEPT["epochs" + take]:
        endless = anew() if take else itertools.cycle(torch.ones(16) for _ in itertools.count())
        KEPT["epochs" + take].append(endless)
    next(KEPT["epochs" + take][0])
    del loader


def failing():
    rows = torch.ones(32)
    raise ValueError(len(rows))


def retry(take):
    try:
        failing()
    except ValueError as error:
        if take == "drop":
            return
        changed = {"clear": error.with_traceback(None), "text": str(error)} if take else {}
        (bounded("errors") if take else KEPT["failures"]).append(changed.get(take, error))


def reject(take):
    rows = torch.ones(32)
    KEPT["rejected"].append(ValueError(str(rows.shape) if take else rows))


def trace(take):
    rows = torch.ones(32)
    KEPT["frames"].append(traceback.extract_stack(limit=1) if take else sys._getframe())
    return rows.sum().item()


def crash_report(take):
    try:
        failing()
    except ValueError:
        KEPT["reports"].append(traceback.format_exc() if take else sys.exc_info()[2])


class Rotary:
    @functools.cache  # noqa: B019
    def table(self, length):
        return torch.ones(length)

    @functools.lru_cache(maxsize=1)  # noqa: B019
    def small(self, length):
        return torch.ones(length)

    @functools.cached_property
    def frequencies(self):
        return torch.ones(16)


def rotate(take):
    if take == "maxsize":
        Rotary().small(16)
    elif take == "cached_property":
        Rotary().frequencies  # noqa: B018
    else:
        Rotary().table(16)
    if take == "cache_clear":
        Rotary.table.cache_clear()


@functools.cache
def normalized(batch):
    return batch / 2


@functools.cache
def mask(length):
    return torch.ones(length)


def normalize(take):
    if take == "plain values":
        mask(8)
        return
    normalized(torch.ones(16))
    if take == "cache_clear":
        normalized.cache_clear()


REQUEST = contextvars.ContextVar("request")


def serve(take):
    context = contextvars.copy_context()
    context.run(REQUEST.set, torch.ones(16))
    if take != "drop":
        (bounded("contexts") if take == "limit" else KEPT["contexts"]).append(context)


LOGGER = logging.getLogger("memwatch.tests.elsewhere")


class Records(logging.Handler):
    def emit(self, record):
        KEPT["records"].append(record)


LOGGER.addHandler(Records())
LOGGER.propagate = False


def log_norm(take):
    norm = ENCODER.weight.detach().norm()
    LOGGER.warning("norm %s", norm.item() if take else norm)


class Pool:
    def __init__(self, take):
        self.buffer = torch.ones(32)
        if take:
            weakref.finalize(self, Pool.close, 3)
        else:
            weakref.finalize(self, self.release)

    @staticmethod
    def close(number):
        pass

    def release(self):
        pass


def read_shard(take):
    class Reader:
        pass

    reader = (
        KEPT["readers"][0] if KEPT["readers"] else KEPT["readers"].append(Pool(True)) or KEPT["readers"][0]
    )
    shard = torch.ones(32)
    weakref.finalize(reader, print, len(shard) if take else shard).atexit = False


def tokens():
    keys = torch.ones(16)
    yield 0
    del keys


def stream(take):
    answer = tokens()
    next(answer)
    KEPT["streams"].append(answer)
    if take == "close":
        answer.close()
    elif take == "exhaust":
        list(answer)


async def embed(text):
    await asyncio.sleep(0)
    return text.numel()


def forget_to_await(take):
    coroutine = embed(torch.zeros(16))
    KEPT["coroutines"].append(coroutine)
    if take == "close":
        coroutine.close()
    elif take == "await":
        coroutine.send(None)
        with contextlib.suppress(StopIteration):
            coroutine.send(None)


def schedule(take):
    job = functools.partial(torch.sum, torch.ones(16))
    jobs = bounded("jobs") if take == "limit" else KEPT["jobs"]
    jobs.append(job)
    if take == "remove":
        jobs.pop()()
    elif take == "empty":
        jobs.clear()


STACK = contextlib.ExitStack()


def enter_late(take):
    if take:
        with contextlib.ExitStack() as stack:
            stack.callback(len, torch.ones(16))
        return
    STACK.callback(len, torch.ones(16))


NOTIFIER = mock.Mock(spec=["send"])


def notify(take):
    NOTIFIER.send(torch.ones(16))
    if take:
        NOTIFIER.reset_mock()


def collate(batch, seen=[]):  # noqa: B006
    seen.append(batch)


def collate_anew(batch, seen=None):
    seen = [] if seen is None else seen
    seen.append(batch)


def load(take):
    (collate_anew if take else collate)(torch.ones(16))


def recursive(take):
    batch = torch.ones(16)
    if take == "argument":

        def go_down(depth, again):
            return again(depth - 1, again) if depth else batch.sum()

        go_down(2, go_down)
        return

    def visit(depth):
        return visit(depth - 1) if depth else batch.sum()

    visit(2)
    if take == "delete":
        del visit


class Meter:
    def __init__(self):
        self.total = torch.zeros(())


METERS = {"": Meter(), "detach": Meter(), "number": Meter()}


def average(take):
    loss = ENCODER(images()).pow(2).mean()
    loss.backward()
    ENCODER.zero_grad()
    METERS[take].total = METERS[take].total + {"detach": loss.detach(), "number": loss.item()}.get(take, loss)


def penalize(take):
    model = nn.Linear(4, 1)
    loss = model(torch.ones(2, 4)).pow(2).sum()
    if take == "autograd.grad":
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        return
    loss.backward(create_graph=True)
    if take == "None":
        model.zero_grad(set_to_none=True)


class Wrapped:
    def __init__(self, take):
        self.weight = torch.ones(16)
        forms = {"WeakMethod": weakref.WeakMethod(self.forward), "function": Wrapped.forward}
        self.call = forms.get(take, self.forward)
        if take == "drop":
            del self.call

    def forward(self):
        return self.weight


class Callback:
    def __init__(self):
        self.state = torch.ones(16)


class Stream:
    """Puts itself into the list of all streams."""

    every, weak, latest = [], weakref.WeakSet(), collections.deque(maxlen=2)

    def __init__(self, take):
        self.state = torch.ones(16)
        if take == "WeakSet":
            Stream.weak.add(self)
        else:
            (Stream.latest if take == "limit" else Stream.every).append(self)
        if take == "remove":
            Stream.every.remove(self)


def on_epoch(take):
    output = torch.ones(16)
    handlers = bounded("handlers") if take == "limit" else KEPT["handlers"]
    if take == "argument":
        handlers.append(len)
        return
    handlers.append(lambda: output.mean())
    if take == "remove":
        handlers.pop()
    elif take == "empty":
        handlers.clear()


def make_plugins(take):
    if take:
        KEPT["plugins"].append(Callback)
        return
    KEPT["plugins"].append(type("Plugin", (), {"scale": torch.ones(16)}))


SESSIONS: dict[object, object] = {}


def open_session(take):
    name = f"session-{next(COUNT)}"
    SESSIONS[name] = {"state": torch.ones(16)}
    if take == "delete":
        del SESSIONS[name]


STATISTICS: dict[object, object] = {}
WEAK_STATISTICS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def describe(take):
    callback = Callback()
    table = WEAK_STATISTICS if take == "WeakKeyDictionary" else STATISTICS
    table[callback] = torch.ones(8)
    if take == "delete":
        del table[callback]


BY_BATCH: dict[object, object] = {}


def index(take):
    batch = torch.ones(16)
    key = tuple(batch.shape) if take == "keys that come again" else batch
    BY_BATCH[key] = "seen"
    if take == "delete":
        del BY_BATCH[key]


BACKGROUND: set[object] = set()
WEAK_BACKGROUND: weakref.WeakSet = weakref.WeakSet()


def fire_and_forget(take):
    callback = Callback()
    (WEAK_BACKGROUND if take == "WeakSet" else BACKGROUND).add(callback)
    if take == "discard":
        BACKGROUND.discard(callback)


class Debug:
    pass


DEBUG = Debug()


def inspect_activation(take):
    with torch.no_grad():
        activation = ENCODER(images())
    name = f"activation_{next(COUNT)}"
    setattr(DEBUG, name, activation.mean().item() if take == "number" else activation)
    if take == "delete":
        delattr(DEBUG, name)


ADAPTERS = nn.ModuleDict()


def add_adapter(take):
    name = "only" if take == "reuse" else f"adapter_{next(COUNT)}"
    if name not in ADAPTERS:
        ADAPTERS[name] = nn.Linear(4, 4)
    if take == "delete":
        del ADAPTERS[name]


SETTINGS = types.ModuleType("settings")


def export(take):
    name = f"embedding_{next(COUNT)}"
    setattr(SETTINGS, name, torch.ones(16).sum().item() if take == "number" else torch.ones(16))
    if take == "delete":
        delattr(SETTINGS, name)


class Node:
    def __init__(self, previous=None):
        self.previous, self.value = previous, torch.ones(16)


STATES = {"": Node(), "original": Node(), "delete": Node()}
ORIGINAL = Node()


def advance(take):
    if take == "original":
        STATES[take] = Node(ORIGINAL)
        return
    STATES[take] = Node(STATES[take])
    if take == "delete":
        STATES[take].previous = None


PICKLERS = {take: pickle.Pickler(io.BytesIO()) for take in ("", "clear_memo")}


def send(take):
    PICKLERS[take].dump([torch.ones(16).numpy()])
    if take:
        PICKLERS[take].clear_memo()


class Child:
    def __init__(self, parent, take):
        self.parent = weakref.ref(parent) if take == "weakref" else parent
        self.state = torch.ones(16)


class Parent:
    def __init__(self, take):
        self.child = Child(self, take)
        if take == "delete":
            del self.child.parent


def neighbours(take):
    first, second = [torch.ones(16)], []
    second.append(first)
    first.append(second)
    if take:
        first.clear()


def tree(take):
    root = {"data": torch.ones(16)}
    root["children"] = [{"parent": root}]
    if take:
        del root["children"]


def local_class(take):
    if take:
        return KEPT["made once"].append(1) or Callback()

    class Temporary:
        weight = torch.ones(16)

    return Temporary()


class Outer(nn.Module):
    def __init__(self, take):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.inner.outer = weakref.ref(self) if take else self


def own_frame(take):
    batch = torch.ones(16)
    frame = sys._getframe()
    if take:
        del frame
    return batch.sum().item()


LOCAL = threading.local()


def use_scratch(take):
    name = f"scratch_{next(COUNT)}"
    setattr(LOCAL, name, torch.ones(16))
    if take:
        delattr(LOCAL, name)


def handle_signal(take):
    state = torch.ones(16)
    before = signal.getsignal(signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, (lambda *_: None) if take else (lambda *_: (state, before)))


def collect_losses(take):
    loss = ENCODER(images()).mean()
    losses = bounded("losses") if take == "limit" else KEPT["losses"]
    losses.append(loss.mean().item() if take == "number" else loss)
    if take == "clear":
        losses.clear()


CASES = [
    (Remedy.VIEW, first_prediction, ["clone", "number"]),
    (Remedy.VIEW_WITH_GRAPH, score_of_a_batch, ["detach and clone", "number"]),
    (Remedy.GROWING_TENSOR, decode, ["newest part", "reset"]),
    (Remedy.HOOK_PER_CALL, capture_features, ["remove", "once"]),
    (Remedy.HOOK_OF_SELF, Monitored, ["function", "weakref", "remove"]),
    (Remedy.TENSOR_HOOK, clip_by_own_norm, ["gradient", "weakref", "remove"]),
    (Remedy.NODE_HOOK, log_loss_at_backward, ["arguments", "remove"]),
    (Remedy.ACCUMULATE_HOOK, step_in_backward, ["its parameter", "weakref"]),
    (Remedy.METADATA, tag_a_node, ["weakref", "detached"]),
    (Remedy.PACK_HOOK, compress_saved, ["detach"]),
    (Remedy.CTX_ATTRIBUTE, gated, ["save_for_backward"]),
    (Remedy.SAVED_VIEW, flattened, ["output", "detached"]),
    (Remedy.NUMPY, arrays_for_a_plot, ["limit", "number", "copy"]),
    (Remedy.ENDLESS_LOOP, epochs, ["anew"]),
    (Remedy.EXCEPTION, retry, ["drop", "clear", "text"]),
    (Remedy.EXCEPTION_ARGS, reject, ["text"]),
    (Remedy.FRAME, trace, ["text"]),
    (Remedy.TRACEBACK, crash_report, ["text"]),
    (Remedy.CACHED_METHOD, rotate, ["maxsize", "cache_clear", "cached_property"]),
    (Remedy.CACHE, normalize, ["cache_clear", "plain values"]),
    (Remedy.KEPT_CONTEXT, serve, ["drop", "limit"]),
    (Remedy.LOG_RECORD, log_norm, ["number"]),
    (Remedy.FINALIZER_OF_OBJECT, Pool, ["static method"]),
    (Remedy.FINALIZER, read_shard, ["no tensor"]),
    (Remedy.GENERATOR, stream, ["close", "exhaust"]),
    (Remedy.GENERATOR, forget_to_await, ["close", "await"]),
    (Remedy.PARTIAL_PER_CALL, schedule, ["remove", "empty", "limit"]),
    (Remedy.EXIT_STACK, enter_late, ["with"]),
    (Remedy.MOCK, notify, ["reset_mock"]),
    (Remedy.DEFAULT_ARGUMENT, load, ["None"]),
    (Remedy.CLOSURE_CELL_IN_CYCLE, recursive, ["argument", "delete"]),
    (Remedy.GRAPH, average, ["detach", "number"]),
    (Remedy.GRADIENT, penalize, ["autograd.grad", "None"]),
    (Remedy.BOUND_METHOD, Wrapped, ["WeakMethod", "function", "drop"]),
    (Remedy.REGISTRY, Stream, ["WeakSet", "remove", "limit"]),
    (Remedy.FUNCTION_PER_CALL, on_epoch, ["remove", "empty", "limit", "argument"]),
    (Remedy.CLASS_PER_CALL, make_plugins, ["once"]),
    (Remedy.VALUE, open_session, ["delete"]),
    (Remedy.VALUE_OF_OBJECTS, describe, ["delete", "WeakKeyDictionary"]),
    (Remedy.VALUE_OF_TENSORS, index, ["delete", "keys that come again"]),
    (Remedy.MEMBER, fire_and_forget, ["discard", "WeakSet"]),
    (Remedy.ATTRIBUTE, inspect_activation, ["delete", "number"]),
    (Remedy.SUBMODULE, add_adapter, ["delete", "reuse"]),
    (Remedy.GLOBAL, export, ["delete", "number"]),
    (Remedy.CHAIN, advance, ["original", "delete"]),
    (Remedy.PICKLER, send, ["clear_memo"]),
    (Remedy.ATTRIBUTE_IN_CYCLE, Parent, ["weakref", "delete"]),
    (Remedy.ITEM_IN_CYCLE, neighbours, ["clear"]),
    (Remedy.VALUE_IN_CYCLE, tree, ["delete"]),
    (Remedy.CLASS_IN_CYCLE, local_class, ["once"]),
    (Remedy.SUBMODULE_IN_CYCLE, Outer, ["weakref"]),
    (Remedy.LOCAL_IN_CYCLE, own_frame, ["delete"]),
    (Remedy.THREAD_LOCAL, use_scratch, ["delete"]),
    (Remedy.SIGNAL_HANDLER, handle_signal, ["no tensors"]),
    (Remedy.ITEM, collect_losses, ["number", "limit", "clear"]),
]


@pytest.fixture(autouse=True)
def _tidy():
    torch.set_num_threads(1)
    before = signal.getsignal(signal.SIGUSR2)
    yield
    signal.signal(signal.SIGUSR2, before)
    for kept in (*KEPT.values(), SESSIONS, STATISTICS, BY_BATCH, BACKGROUND, ADAPTERS, Stream.every):
        kept.clear()
    KEPT.clear()
    STACK.pop_all()
    Rotary.table.cache_clear()
    normalized.cache_clear()


@pytest.mark.parametrize(("remedy", "program", "takes"), CASES, ids=[each[1].__name__ for each in CASES])
def test_each_change_that_an_advice_offers_ends_the_leak(remedy, program, takes):
    """One program at a time: lists that one dictionary keeps are one leak, and its advice names one of them."""
    told = [leak.advice for leak in find_leaks(program, "")]
    assert any(words in each for each in told for words in _sentences(remedy)), told
    assert [str(leak) for leak in find_leaks(lambda: [program(take) for take in takes] and None)] == []


def _sentences(remedy):
    """Return the words of an advice up to the first name that it gives."""
    return [text.split("{")[0] for text in (remedy.row.advice, remedy.row.of_objects) if text]
