"""Optimizers of one model, of which a container keeps one more with each call."""

from __future__ import annotations

import collections
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from memwatch.leaks import TensorLeakError, check_leaks, find_leaks

MODEL, OTHER_MODEL = nn.Linear(16, 16), nn.Linear(16, 16)
STATE_BYTES = 2 * (16 * 16 + 16) * 4 + 2 * 4  # exp_avg and exp_avg_sq of two parameters, and their steps
KEPT = SimpleNamespace(items=[], table={}, latest=None, window=collections.deque(maxlen=2), pair=[None, None])

NEARER_WINDOW = collections.deque(maxlen=3)


class Run:
    def __init__(self, optimizer):
        self.optimizer = optimizer


@pytest.fixture(autouse=True)
def _empty():
    torch.set_num_threads(1)
    yield
    for kept in (KEPT.items, KEPT.table, KEPT.window, NEARER_WINDOW):
        kept.clear()
    KEPT.latest, KEPT.pair = None, [None, None]
    MODEL.zero_grad(), OTHER_MODEL.zero_grad()


def step(optimizer=None, model=MODEL):
    optimizer = torch.optim.Adam(model.parameters()) if optimizer is None else optimizer
    model(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    return optimizer


def appends():
    KEPT.items.append(step())


def appends_a_scheduler():
    KEPT.items.append(torch.optim.lr_scheduler.ExponentialLR(step(), 0.9))


def appends_an_object_with_it():
    KEPT.items.append(Run(step()))


def appends_a_pair_with_it():
    KEPT.items.append(("run", step()))


def adds_a_key():
    KEPT.table[f"run {len(KEPT.table)}"] = step()


def appends_it_and_keeps_the_latest():
    KEPT.latest = step()
    KEPT.items.append(KEPT.latest)


def appends_it_and_fills_a_window():
    NEARER_WINDOW.append(step())
    KEPT.items.append(NEARER_WINDOW[-1])


def replaces_the_latest():
    KEPT.latest = step()


def replaces_the_value_of_a_key():
    KEPT.table["run"] = step()


def replaces_the_last_item():
    KEPT.pair[1] = step()


def fills_a_window():
    KEPT.window.append(step())


def keeps_the_last_two():
    KEPT.items[:] = [*KEPT.items[-1:], step()]


LEAKS = [
    appends,
    appends_a_scheduler,
    appends_an_object_with_it,
    appends_a_pair_with_it,
    adds_a_key,
    appends_it_and_keeps_the_latest,
    appends_it_and_fills_a_window,
]
TWINS = [
    replaces_the_latest,
    replaces_the_value_of_a_key,
    replaces_the_last_item,
    fills_a_window,
    keeps_the_last_two,
]


def leaks_of_one_pass(call):
    try:
        with check_leaks():
            call()
    except TensorLeakError as error:
        return error.leaks
    return []


@pytest.mark.parametrize("call", LEAKS)
def test_one_more_optimizer_of_a_container_is_a_leak_beside_an_older_one(call):
    """The first one may be the optimizer of the model."""
    assert leaks_of_one_pass(call) == []
    for _ in range(2):
        (leak,) = leaks_of_one_pass(call)
        assert leak.nbytes == STATE_BYTES, str(leak)
        assert leak.container.startswith("global `KEPT`"), str(leak)
    (found,) = find_leaks(call)
    assert (found.cause, found.nbytes) == (leak.cause, leak.nbytes), str(found)
    assert leak.advice == found.advice
    assert ".item()" not in leak.advice  # an optimizer has no number


@pytest.mark.parametrize("call", TWINS)
def test_an_optimizer_that_takes_the_place_of_another_is_no_leak(call):
    call(), call()
    for _ in range(2):
        assert [str(leak) for leak in leaks_of_one_pass(call)] == []
    assert [str(leak) for leak in find_leaks(call)] == []


def test_an_optimizer_that_replaces_another_before_its_first_step_is_no_leak():
    """The container has as many as before, although no state died."""
    KEPT.items[:] = [torch.optim.Adam(MODEL.parameters()) for _ in range(2)]

    def replaces_the_second():
        KEPT.items[1] = torch.optim.Adam(MODEL.parameters())
        for optimizer in KEPT.items:
            step(optimizer)

    assert [str(leak) for leak in leaks_of_one_pass(replaces_the_second)] == []


def test_the_state_of_an_older_optimizer_is_no_leak_of_the_list_that_has_it():
    """It may make its first step long after it was made."""
    KEPT.items[:] = [step(), torch.optim.Adam(MODEL.parameters())]
    assert [str(leak) for leak in leaks_of_one_pass(lambda: step(KEPT.items[1]))] == []


def test_the_first_optimizer_of_another_model_is_no_leak_beside_an_older_one():
    """A program may make the optimizer of each of its models when it first trains the model."""

    def trains(name, model):
        if name not in KEPT.table:
            KEPT.table[name] = torch.optim.Adam(model.parameters())
            KEPT.items.append(KEPT.table[name])
        step(KEPT.table[name], model)

    trains("generator", MODEL)
    for _ in range(2):
        assert [str(leak) for leak in leaks_of_one_pass(lambda: trains("discriminator", OTHER_MODEL))] == []


@pytest.mark.parametrize("place", [0, 1])
def test_an_optimizer_that_replaces_another_before_its_first_step_is_no_leak_beside_that_of_another_model(
    place,
):
    KEPT.items[:] = [step()]
    KEPT.items.insert(place, torch.optim.Adam(OTHER_MODEL.parameters()))

    def replaces():
        KEPT.items[place] = torch.optim.Adam(OTHER_MODEL.parameters(), lr=0.01)
        step(KEPT.items[place], OTHER_MODEL)

    assert [str(leak) for leak in leaks_of_one_pass(replaces)] == []
