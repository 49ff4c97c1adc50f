"""Values that stay in place while something behind them grows: replaced storage, graphs of entries, long paths."""

from __future__ import annotations

import itertools
from collections import deque
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from memwatch.kinds.leaks import Remedy
from memwatch.leaks import TensorLeakError, check_leaks, find_leaks
from memwatch.words.leaks import advice

LAYER = nn.Linear(8, 8)
SHADOW: dict[str, torch.Tensor] = {}
LAST_TWO: list[torch.Tensor] = []
DEEP = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
OPTIMIZER = None
HELD = SimpleNamespace(layer=nn.Linear(8, 8), members=set(), queue=deque(), keys={})


class Plus(nn.Module):
    def __init__(self):
        super().__init__()
        self.delta = nn.Parameter(torch.zeros(8, 8))

    def forward(self, weight):
        return weight + self.delta


@pytest.fixture(autouse=True)
def _fresh():
    torch.set_num_threads(1)
    SHADOW.clear()
    SHADOW.update((name, value.detach().clone()) for name, value in LAYER.named_parameters())
    LAST_TWO[:] = [torch.zeros(8)]


def leaks_of_one_pass(fn):
    try:
        check_leaks()(fn)()
    except TensorLeakError as error:
        return error.leaks
    return []


def parametrized_for_one_call():
    parametrize.register_parametrization(LAYER, "weight", Plus())
    LAYER(torch.ones(1, 8))
    parametrize.remove_parametrizations(LAYER, "weight")


def pruned_for_good():
    prune.random_unstructured(LAYER, "weight", 0.1)
    prune.remove(LAYER, "weight")


@pytest.mark.parametrize("fn", [parametrized_for_one_call, pruned_for_good])
def test_a_parameter_that_gets_other_memory_in_each_call_is_no_leak(fn):
    """The parameter is older than the calls, its memory is not: that ended in an error."""
    assert find_leaks(fn) == []
    assert leaks_of_one_pass(fn) == []


def averaged(*, detach):
    for name, value in LAYER.named_parameters():
        SHADOW[name] = 0.9 * SHADOW[name] + 0.1 * (value.detach() if detach else value)


def slid(*, detach):
    last = LAST_TWO[-1].detach() if detach else LAST_TWO[-1]
    LAST_TWO.append((last * LAYER.bias).tanh())
    del LAST_TWO[:-2]


@pytest.mark.parametrize("fn", [averaged, slid])
def test_of_entries_that_are_replaced_the_graph_alone_is_told(fn):
    """Neither a dictionary nor a list grows, so none needs a bound, and the newest values are not counted."""
    fn(detach=False)
    fn(detach=False)
    leaks = find_leaks(lambda: fn(detach=False), runs=4)
    assert {leak.advice for leak in leaks} == {advice(Remedy.GRAPH)}
    assert sum(leak.nbytes for leak in leaks) == sum(
        leak.nbytes for leak in leaks_of_one_pass(lambda: fn(detach=False))
    )
    SHADOW.update((name, value.detach()) for name, value in SHADOW.items())
    assert find_leaks(lambda: fn(detach=True)) == []


def test_the_middle_of_a_long_way_through_a_graph_is_left_out_of_the_text():
    """The path has it."""
    [leak, *_] = find_leaks(lambda: averaged(detach=False))
    assert len(leak.path) > 30
    text = str(leak).splitlines()
    assert len(text) < 20
    hidden = sum(edge.hidden for edge in leak.edges)
    assert f"    ... {hidden - 6} more references, within C++ ..." in text
    assert text[-2].strip() == leak.path[-1]


@pytest.mark.parametrize(
    "add", [HELD.members.add, HELD.queue.append, lambda model: HELD.keys.setdefault(model, 0)]
)
def test_one_more_model_of_any_container_is_told_by_one_pass(add):
    """This holds for a set, a deque and a dictionary's keys.

    The first model is excused, because it may be under construction.
    """
    assert leaks_of_one_pass(lambda: add(nn.Linear(8, 8))) == []
    (leak,) = leaks_of_one_pass(lambda: add(nn.Linear(8, 8)))
    assert leak.count == 2
    assert [each.cause for each in find_leaks(lambda: add(nn.Linear(8, 8)))] == [leak.cause]


def test_advice_is_about_what_grows_not_about_what_leads_to_it():
    """An attribute keeps the model, and a name of a class the table: it is one more part, one more entry that stays."""
    numbers = itertools.count()
    owner = SimpleNamespace(model=nn.Module(), Table=type("Table", (), {"entries": {}}))

    def add_part():
        owner.model.add_module(f"adapter{next(numbers)}", nn.Linear(4, 4))

    def add_entry():
        owner.Table.entries[next(numbers)] = torch.ones(4)

    assert {leak.advice for leak in find_leaks(add_part)} == {advice(Remedy.SUBMODULE)}
    assert {leak.advice for leak in find_leaks(add_entry)} == {advice(Remedy.VALUE)}


def test_a_gradient_that_is_made_anew_is_no_leak_of_the_optimizer():
    """The way over the keys of its state is shorter than the one over the model's layers, but shows no new entry."""
    global OPTIMIZER  # noqa: PLW0603
    OPTIMIZER = torch.optim.Adam(DEEP.parameters())  # not at import: torch imports its compiler then
    for _ in range(2):
        DEEP(torch.ones(1, 8)).sum().backward()
        OPTIMIZER.step()
        OPTIMIZER.zero_grad()
    assert leaks_of_one_pass(lambda: DEEP(torch.ones(1, 8)).sum().backward()) == []
