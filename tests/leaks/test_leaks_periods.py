"""A leak on every second call is found by any number of runs that shows it twice."""

from __future__ import annotations

import pytest
import torch

from memwatch.leaks import find_leaks

LAYER = torch.nn.Linear(64, 64)
INPUT = torch.ones(4, 64)


class State:
    def __init__(self):
        self.calls, self.kept, self.total, self.last = 0, [], 0, None


STATE = State()


@pytest.fixture(params=[0, 1], ids=["even", "odd"], autouse=True)
def _fresh(request):
    torch.set_num_threads(1)
    STATE.__init__()
    STATE.calls = request.param


def is_second_call():
    STATE.calls += 1
    return STATE.calls % 2 == 0


def keeps_a_tensor():
    if is_second_call():
        STATE.kept.append(torch.ones(1000))


def makes_a_cycle():
    if is_second_call():
        state = State()
        state.last, state.kept = state, torch.ones(1000)


def keeps_a_graph():
    """The total has no tensor yet before the first of these calls."""
    if is_second_call():
        STATE.total = STATE.total + LAYER(INPUT).exp().sum()


def replaces_a_value():
    if is_second_call():
        STATE.last = torch.ones(1000)


def adds_a_detached_value():
    if is_second_call():
        STATE.total = STATE.total + LAYER(INPUT).exp().sum().detach()


@pytest.mark.parametrize("runs", [4, 5, 8, "auto"])
@pytest.mark.parametrize(
    ("fn", "nbytes"), [(keeps_a_tensor, 4000), (makes_a_cycle, 4000), (keeps_a_graph, 1024)]
)
def test_a_leak_on_every_second_call_is_found(fn, nbytes, runs):
    (leak,) = find_leaks(fn, runs=runs)
    assert (leak.nbytes, leak.count, leak.every) == (nbytes, 1, 2)


@pytest.mark.parametrize("runs", [4, 5, 8, "auto"])
@pytest.mark.parametrize("fn", [replaces_a_value, adds_a_detached_value])
def test_what_every_second_call_replaces_is_no_leak(fn, runs):
    assert find_leaks(fn, runs=runs) == []


def test_a_prompt_shows_a_list_of_leaks_in_one_line_each():
    """`print(leak)` has the whole text; a list shows the headline of each."""
    kept = []
    leaks = find_leaks(lambda: kept.append(torch.ones(4096)))
    (leak,) = leaks
    assert repr(leaks) == f"[<Leak: {leak.headline()}>]"
    assert "\n" not in repr(leaks)
    assert len(str(leak).splitlines()) > 1
