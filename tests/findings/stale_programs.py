"""Programs that keep useless memory from one iteration into the next, each with its corrected twin.

The programs train a small model for a few steps. A twin does the same without the one reference.
"""

from __future__ import annotations

import contextvars
import functools
import sys
import threading
from collections import deque

import torch
from torch import Tensor, nn

WIDE = 128
ROWS = 8 * WIDE
KEPT_BYTES = ROWS * WIDE * 4
STEPS = 4


class Net(nn.Module):
    def __init__(self, *, keeps_input=False):
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)
        self.keeps_input = keeps_input

    def forward(self, x):
        if self.keeps_input:
            self.last_input = x
        return self.outer(torch.relu(self.inner(x)))


def batch():
    return torch.randn(ROWS, WIDE)


def train(model, after_forward=lambda x, out: None, batches=None):
    """Train, and hand the input and the output of each forward to a function."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        x = batch() if batches is None else next(batches)
        out = model(x)
        after_forward(x, out)
        loss = out.square().mean()
        del x, out
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def last_input():
    train(Net(keeps_input=True))


def no_last_input():
    train(Net())


class Monitor:
    latest = None

    @classmethod
    def note(cls, x):
        cls.latest = x * 2


def class_variable():
    train(Net(), lambda x, out: Monitor.note(x))
    Monitor.latest = None


def class_variable_of_number():
    train(Net(), lambda x, out: setattr(Monitor, "latest", float((x * 2).sum())))


def check(x):
    doubled = x * 2
    raise ValueError(f"bad input with sum {float(doubled.sum()):.0f}")


def kept_exception():
    errors = {}

    def after_forward(x, out):
        try:
            check(x)
        except ValueError as error:
            errors["last"] = error

    train(Net(), after_forward)


def kept_text_of_exception():
    errors = {}

    def after_forward(x, out):
        try:
            check(x)
        except ValueError as error:
            errors["last"] = str(error)

    train(Net(), after_forward)


def one_exception():
    errors = []

    def after_forward(x, out):
        try:
            if not errors:
                check(x)
        except ValueError as error:
            errors.append(error)

    train(Net(), after_forward)


def text_of_one_exception():
    errors = []

    def after_forward(x, out):
        try:
            if not errors:
                check(x)
        except ValueError as error:
            errors.append(str(error))

    train(Net(), after_forward)


def last_value():
    def after_forward(x, out):
        try:
            check(x)
        except ValueError as error:
            sys.last_value = error

    try:
        train(Net(), after_forward)
    finally:
        del sys.last_value


def last_value_cleared():
    def after_forward(x, out):
        try:
            check(x)
        except ValueError as error:
            sys.last_value = error
        sys.last_value = None

    try:
        train(Net(), after_forward)
    finally:
        del sys.last_value


_SCRATCH = threading.local()


def fill(x):
    workspace = torch.empty(ROWS, WIDE)
    workspace.copy_(x)
    workspace.sum()
    return workspace


def thread_local_workspace():
    train(Net(), lambda x, out: setattr(_SCRATCH, "workspace", fill(x)))
    del _SCRATCH.workspace


def workspace_of_a_call():
    train(Net(), lambda x, out: float(fill(x).sum()))


def loader():
    while True:
        loaded = batch()
        yield loaded


def loader_that_lets_go():
    while True:
        yield batch()


def suspended_generator():
    train(Net(), batches=loader())


def suspended_generator_without_batch():
    train(Net(), batches=loader_that_lets_go())


def feature_hook():
    features = {}

    def keep(module, inputs, output):
        features["inner"] = output.detach() * 2

    return keep


def norm_hook():
    features = {}

    def keep(module, inputs, output):
        features["inner"] = float((output.detach() * 2).sum())

    return keep


def features_of_hook():
    model = Net()
    model.inner.register_forward_hook(feature_hook())
    train(model)


def norm_of_hook():
    model = Net()
    model.inner.register_forward_hook(norm_hook())
    train(model)


class Trainer:
    def __init__(self, *, keeps):
        self.model, self.keeps = Net(), keeps
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.images = None

    def step(self):
        images = batch()
        if self.keeps:
            self.images = images
        loss = self.model(images).square().mean()
        del images
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def run(self):
        for _ in range(STEPS):
            self.step()


def attribute_of_trainer():
    Trainer(keeps=True).run()


def local_variable_of_step():
    Trainer(keeps=False).run()


class LateTrainer(Trainer):
    """Stores the batch after the step, which has it in a variable until then."""

    def step(self):
        images = batch()
        target = batch()
        loss = (self.model(images) - target).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.keeps:
            self.images = images, target


def attribute_after_step():
    LateTrainer(keeps=True).run()


def variables_of_step():
    LateTrainer(keeps=False).run()


_STATISTICS = {}


def global_dictionary():
    train(Net(), lambda x, out: _STATISTICS.update(doubled=x * 2))
    _STATISTICS.clear()


def global_dictionary_of_numbers():
    train(Net(), lambda x, out: _STATISTICS.update(doubled=float((x * 2).sum())))
    _STATISTICS.clear()


_CURRENT: contextvars.ContextVar[Tensor | None] = contextvars.ContextVar("current")


def context_variable():
    train(Net(), lambda x, out: _CURRENT.set(x * 2))
    _CURRENT.set(None)


def context_variable_reset():
    def after_forward(x, out):
        token = _CURRENT.set(x * 2)
        _CURRENT.reset(token)

    train(Net(), after_forward)


@functools.lru_cache(maxsize=1)
def mask(step):
    return torch.randn(ROWS, WIDE).relu()


def cache_of_one():
    steps = iter(range(STEPS))
    train(Net(), lambda x, out: mask(next(steps)).sum())
    mask.cache_clear()


def no_cache():
    steps = iter(range(STEPS))
    train(Net(), lambda x, out: mask.__wrapped__(next(steps)).sum())


def recorder():
    latest = None

    def note(x, out):
        nonlocal latest
        latest = x * 2

    return note


def closure_cell():
    train(Net(), recorder())


def no_closure_cell():
    train(Net(), lambda x, out: float((x * 2).sum()))


def default_argument():
    def after_forward(x, out, seen=[None]):  # noqa: B006  # that is the point
        seen[0] = x * 2

    train(Net(), after_forward)


def default_argument_of_numbers():
    def after_forward(x, out, seen=[None]):  # noqa: B006
        seen[0] = float((x * 2).sum())

    train(Net(), after_forward)


_WINDOW = deque(maxlen=1)


def window_of_one():
    train(Net(), lambda x, out: _WINDOW.append(x * 2))
    _WINDOW.clear()


def window_of_numbers():
    train(Net(), lambda x, out: _WINDOW.append(float((x * 2).sum())))
    _WINDOW.clear()


class Scale(torch.autograd.Function):
    last = None

    @staticmethod
    def forward(ctx, x):
        Scale.last = x.exp()
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.inner, self.scale = nn.Linear(WIDE, WIDE), scale

    def forward(self, x):
        return self.scale(self.inner(x))


def class_variable_of_function():
    train(Scaled(Scale.apply))
    Scale.last = None


def no_class_variable_of_function():
    train(Scaled(lambda x: x.exp().mul(0).add(1) * x * 2))


class Average:
    """An exponential moving average of the weights."""

    def __init__(self, model):
        self.weights = {name: each.detach().clone() for name, each in model.named_parameters()}

    def update(self, model):
        for name, each in model.named_parameters():
            self.weights[name].mul_(0.9).add_(each.detach(), alpha=0.1)


def average_of_weights():
    model = Net()
    average = Average(model)
    train(model, lambda x, out: average.update(model))


class Best:
    weights = None


def best_weights():
    model = Net()
    train(
        model, lambda x, out: setattr(Best, "weights", {k: v.clone() for k, v in model.state_dict().items()})
    )
    Best.weights = None


class Prefetcher:
    def __init__(self):
        self.next = batch()

    def take(self):
        taken, self.next = self.next, batch()
        return taken


def double_buffer():
    prefetcher = Prefetcher()
    train(Net(), batches=iter(prefetcher.take, None))


class Difference:
    previous = None

    @classmethod
    def note(cls, x, out):
        if cls.previous is not None:
            (x - cls.previous).square().mean()
        cls.previous = x * 2


def read_by_the_next_step():
    train(Net(), Difference.note)
    Difference.previous = None


def read_by_every_third_step():
    calls = iter(range(9))

    def after_forward(x, out):
        if next(calls) % 3 == 2:
            Difference.previous.sum()
        Difference.previous = x * 2

    train(Net(), after_forward)
    train(Net(), after_forward)
    Difference.previous = None


class Table:
    rows = None


def cache_that_is_read():
    def after_forward(x, out):
        if Table.rows is None:
            Table.rows = torch.randn(ROWS, WIDE).exp()
        (Table.rows * x).sum()

    train(Net(), after_forward)
    Table.rows = None


def momentum():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        model(batch()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def variables_of_the_loop():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        x = batch()
        out = {"logits": model(x), "doubled": x * 2}
        loss = out["logits"].square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


class Replay:
    def __init__(self):
        self.seen = []

    def add(self, x):
        self.seen.append(x * 2)


def replay_that_fills():
    replay = Replay()
    train(Net(), lambda x, out: replay.add(x))


class Hidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.state = nn.Linear(WIDE, WIDE), None

    def forward(self, x):
        x = self.inner(x) if self.state is None else self.inner(x + self.state)
        self.state = x.detach() * 2
        return x


def state_of_a_recurrent_module():
    train(Hidden())


_USERS = deque(maxlen=3)


def cache_of_several_that_was_not_hit():
    train(Net(), lambda x, out: _USERS.append(x * 2))
    train(Net(), lambda x, out: _USERS.append(x * 2))
    _USERS.clear()


SILENT = (
    cache_of_several_that_was_not_hit, average_of_weights, best_weights, double_buffer, read_by_the_next_step,
    read_by_every_third_step, cache_that_is_read, momentum, variables_of_the_loop, replay_that_fills,
    state_of_a_recurrent_module,
)  # fmt: skip

CASES = {
    # the program, words of its finding, text of the line to edit if the line that stores the memory is known, its twin
    "last input": (last_input, [".last_input", "Net"], "self.last_input = x", no_last_input),
    "class variable": (class_variable, ["`Monitor.latest`"], "cls.latest = x * 2", class_variable_of_number),
    "kept exception": (kept_exception, ["local variable of", "exception's text"], "", kept_text_of_exception),
    "one exception": (one_exception, ["local variable of", "exception's text"], "", text_of_one_exception),
    "last value": (last_value, ["sys.last_value"], "", last_value_cleared),
    "thread local": (thread_local_workspace, [".workspace", "`_SCRATCH`"], "", workspace_of_a_call),
    "generator": (
        suspended_generator,
        ["`loaded`", "generator `loader`"],
        "",
        suspended_generator_without_batch,
    ),
    "hook": (features_of_hook, ["features"], "", norm_of_hook),
    "trainer": (attribute_of_trainer, [".images"], "self.images = images", local_variable_of_step),
    "after step": (attribute_after_step, [".images"], "self.images = images, target", variables_of_step),
    "global dictionary": (global_dictionary, ["`_STATISTICS`"], "", global_dictionary_of_numbers),
    "context variable": (context_variable, ["`current`"], "", context_variable_reset),
    "cache of one": (cache_of_one, ["mask"], "", no_cache),
    "closure cell": (closure_cell, ["latest"], "", no_closure_cell),
    "default argument": (default_argument, ["seen"], "", default_argument_of_numbers),
    "window of one": (window_of_one, ["`_WINDOW`"], "", window_of_numbers),
    "function": (
        class_variable_of_function,
        ["`Scale.last`"],
        "Scale.last = x.exp()",
        no_class_variable_of_function,
    ),
}
