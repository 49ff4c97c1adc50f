"""Programs that look like leaks and are innocent, for both questions unless stated otherwise."""

from __future__ import annotations

import collections
import contextlib
import functools
import threading
import weakref

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

MODEL = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.Linear(16, 1))
OPTIMIZER = None
WEIGHT = torch.randn(16, 16, requires_grad=True)


def make_optimizer():
    """Make it before the first test, not at import: torch imports its compiler then."""
    global OPTIMIZER  # noqa: PLW0603
    OPTIMIZER = torch.optim.AdamW(MODEL.parameters(), foreach=False)


def training_step():
    OPTIMIZER.zero_grad()
    MODEL(torch.randn(8, 16)).mean().backward()
    OPTIMIZER.step()


def gradients_left():
    MODEL(torch.randn(8, 16)).mean().backward()


def fresh_training_run():
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(2, 8)).sum().backward()
    optimizer.step()


def returns_a_graph():
    return MODEL(torch.randn(8, 16)).mean()


def returns_a_dictionary():
    x = torch.randn(8, 16)
    return {"x": x, "y": [MODEL(x)]}


BATCH_NORM = nn.BatchNorm1d(16)


def batch_norm_buffers():
    BATCH_NORM(torch.randn(8, 16))


def checkpointed():
    checkpoint(MODEL, torch.randn(8, 16, requires_grad=True), use_reentrant=False).sum().backward()


def checkpointed_without_backward():
    checkpoint(MODEL, torch.randn(8, 16, requires_grad=True), use_reentrant=False)


def reentrant_checkpoint():
    checkpoint(MODEL, torch.randn(8, 16, requires_grad=True), use_reentrant=True).sum().backward()


def autocast_step():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = MODEL(torch.randn(8, 16)).mean()
    loss.backward()


def list_in_the_call():
    outputs = [MODEL(torch.randn(8, 16)) for _ in range(4)]
    return torch.cat(outputs).sum().item()


def hook_removed():
    y = WEIGHT.exp()
    handle = y.register_hook(lambda grad: grad * y)
    handle.remove()


def hook_with_arguments_only():
    y = WEIGHT.exp()
    y.register_hook(lambda grad: grad.clamp(-1, 1))
    y.grad_fn.register_hook(lambda grads_in, grads_out: None)
    y.sum().backward()


def weak_registry():
    REGISTRY["last"] = torch.randn(16)


REGISTRY: weakref.WeakValueDictionary[str, torch.Tensor] = weakref.WeakValueDictionary()


def cycle_without_tensors():
    ring: list[object] = []
    ring.append(ring)


def tensor_beside_a_cycle():
    ring: list[object] = []
    ring.append(ring)
    return torch.randn(16).sum().item()


def handled_exception():
    try:
        activations = torch.randn(16)
        raise ValueError(activations.shape)
    except ValueError as error:
        return str(error)


def finished_generator():
    return sum(t.sum().item() for t in (torch.randn(4) for _ in range(3)))


def finished_threads():
    threads = [threading.Thread(target=lambda: MODEL(torch.randn(8, 16)).sum().item()) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def higher_order_gradient():
    x = torch.randn(4, requires_grad=True)
    (grad,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    grad.sum().backward()


def functional_transforms():
    return torch.func.vmap(torch.func.grad(lambda x: (x**2).sum()))(torch.randn(4, 3))


def detached_view_of_a_weight():
    return WEIGHT.detach()[0]


def meta_and_sparse():
    torch.empty(1000, device="meta")
    return torch.eye(4).to_sparse() @ torch.randn(4, 4)


def sparse_embedding():
    layer = nn.Embedding(10, 4, sparse=True)
    layer(torch.tensor([1, 2])).sum().backward()


def nested_tensors():
    return torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged).sum()


def state_dict_round_trip():
    MODEL.load_state_dict({key: value.clone() for key, value in MODEL.state_dict().items()})


def exit_stack():
    with contextlib.ExitStack() as stack:
        value = torch.randn(16)
        stack.callback(value.zero_)


def local_lru_cache():
    @functools.lru_cache
    def square(n):
        return torch.full((n,), float(n))

    return square(3).sum().item() + square(3).sum().item()


RING = collections.deque(maxlen=3)


def bounded_deque():
    RING.append(torch.randn(16))


@functools.lru_cache(maxsize=4)
def positions(n):
    return torch.arange(n)


COUNTER = iter(range(10**9))


def bounded_lru_cache():
    positions(next(COUNTER) % 6 + 1)


BY_SHAPE: dict[int, torch.Tensor] = {}


def mask_by_shape():
    if 16 not in BY_SHAPE:
        BY_SHAPE[16] = torch.ones(16, 16).tril()


class Average:
    def __init__(self):
        self.value = torch.zeros(16)

    def update(self, new):
        self.value = 0.9 * self.value + 0.1 * new


AVERAGE = Average()


def moving_average():
    AVERAGE.update(torch.randn(16))


FIFO: dict[int, torch.Tensor] = {}


def first_in_first_out():
    FIFO[next(COUNTER)] = torch.randn(16)
    while len(FIFO) > 2:
        del FIFO[next(iter(FIFO))]


WINDOW = [torch.randn(4) for _ in range(5)]
LOSSES = [MODEL(torch.randn(8, 16)).mean() for _ in range(5)]


def moving_window():
    WINDOW.append(torch.randn(4))
    del WINDOW[0]


def moving_window_with_graphs():
    LOSSES.append(MODEL(torch.randn(8, 16)).mean())
    del LOSSES[0]


REPLAY = collections.deque(maxlen=1000)


def bounded_replay_buffer():
    REPLAY.append(torch.randn(16))


LAST: dict[str, torch.Tensor] = {}


def last_output():
    LAST["loss"] = MODEL(torch.randn(8, 16)).mean()


# "What does each further call add?" answers: nothing. "What did this pass park?" rightly names these.
PARKS_ONCE = [
    bounded_deque,
    bounded_lru_cache,
    mask_by_shape,
    moving_average,
    first_in_first_out,
    moving_window,
    moving_window_with_graphs,
    bounded_replay_buffer,
    last_output,
]

INNOCENT = [
    training_step,
    gradients_left,
    fresh_training_run,
    returns_a_graph,
    returns_a_dictionary,
    batch_norm_buffers,
    checkpointed,
    checkpointed_without_backward,
    reentrant_checkpoint,
    autocast_step,
    list_in_the_call,
    hook_removed,
    hook_with_arguments_only,
    weak_registry,
    cycle_without_tensors,
    tensor_beside_a_cycle,
    handled_exception,
    finished_generator,
    finished_threads,
    higher_order_gradient,
    functional_transforms,
    detached_view_of_a_weight,
    meta_and_sparse,
    sparse_embedding,
    nested_tensors,
    state_dict_round_trip,
    exit_stack,
    local_lru_cache,
]
