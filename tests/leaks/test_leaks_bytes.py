"""The reported bytes per call are those that a call adds, however many calls were measured."""

from __future__ import annotations

import itertools
import queue
import threading

import pytest
import torch

from memwatch.leaks import find_leaks

KIB = 1024
RUNS = (2, 4, 8, "auto")
WEIGHT = torch.randn(128, 128, requires_grad=True)
INPUT = torch.randn(128, 128)


class Cell:
    def __init__(self):
        self.hidden = torch.zeros(128, 128)


CELL = Cell()
HIDDEN = torch.zeros(128, 128)
TOTAL = torch.zeros(())
LAST = torch.zeros(128, 128)


@pytest.fixture(autouse=True)
def _fresh():
    global HIDDEN, TOTAL
    torch.set_num_threads(1)
    yield
    CELL.hidden, HIDDEN, TOTAL = torch.zeros(128, 128), torch.zeros(128, 128), torch.zeros(())


def bytes_per_call(fn, runs):
    return sum(leak.nbytes for leak in find_leaks(fn, runs=runs))


def global_state():
    """The graph of each call saves two results: that of `exp`, and that of `tanh`, which is the new state."""
    global HIDDEN  # noqa: PLW0603 - the program under test
    HIDDEN = torch.tanh(torch.exp(HIDDEN @ WEIGHT))


def attribute_state():
    CELL.hidden = torch.sigmoid(torch.exp(CELL.hidden @ WEIGHT))


def state_beside_a_replaced_value():
    """The replaced value is as large as the state and does not leak."""
    global LAST  # noqa: PLW0603 - the program under test
    LAST = torch.ones(128, 128)
    global_state()


def running_total():
    """The total is replaced: the graph of the old one needs its input alone."""
    global TOTAL  # noqa: PLW0603 - the program under test
    TOTAL = TOTAL + torch.exp(INPUT @ WEIGHT).sum()


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize(
    ("step", "nbytes"),
    [
        (global_state, 128 * KIB),
        (attribute_state, 128 * KIB),
        (state_beside_a_replaced_value, 128 * KIB),
        (running_total, 64 * KIB),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_state_with_its_graph_leaks_as_much_on_each_call(step, nbytes, runs):
    assert bytes_per_call(step, runs) == nbytes


def detached_state():
    global HIDDEN  # noqa: PLW0603 - the program under test
    HIDDEN = torch.tanh(torch.exp(HIDDEN @ WEIGHT)).detach()


@pytest.mark.parametrize("runs", RUNS)
def test_a_detached_state_does_not_leak(runs):
    assert find_leaks(detached_state, runs=runs) == []


def prefetching(*, abandons):
    """Start a thread that keeps two batches ahead, one in its queue and one in its hand."""
    batches = queue.Queue(maxsize=1)
    is_over = threading.Event()

    def work():
        while not is_over.is_set():
            batches.put(torch.ones(128, 128))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    batches.get()
    if not abandons:
        is_over.set()
        while thread.is_alive():
            try:
                batches.get(timeout=0.01)
            except queue.Empty:
                pass
        thread.join()


@pytest.mark.parametrize("runs", RUNS)
def test_an_abandoned_thread_leaks_the_batches_that_it_has_made(runs):
    """The thread makes them while the call returns; they belong to that call all the same."""
    leaks = find_leaks(prefetching, abandons=True, runs=runs)
    assert [(leak.nbytes, leak.count) for leak in leaks] == [(128 * KIB, 2)]


@pytest.mark.parametrize("runs", RUNS)
def test_a_thread_that_is_ended_does_not_leak(runs):
    assert find_leaks(prefetching, abandons=False, runs=runs) == []


OVERLAPPING = [
    ([3, 3, 2, 4, 3, 3, 2, 3], 3),  # the last call has not ended its work
    ([5, 3, 3, 3, 3, 3, 3, 3], 3),  # nor had the warm-up call
    ([3, 3, 0, 6, 3, 3, 3, 3], 3),  # the work of one call came with that of the next one
    ([1, 1, 1, 2, 1, 1, 1, 2], 1.25),  # every fourth call adds more
    ([1, 3, 1, 3, 1, 3, 1, 3], 2),
]


@pytest.mark.parametrize(("counts", "per_call"), OVERLAPPING, ids=str)
def test_calls_that_overlap_leak_as_much_as_each_of_them(counts, per_call):
    """As those of a pool of threads, or of tasks, of which each call awaits only some."""
    kept, made = [], iter([counts[0], *counts])

    def step():
        kept.extend([torch.ones(128, 128) for _ in range(next(made))])

    [leak] = find_leaks(step, runs=len(counts))
    assert (leak.nbytes, leak.count, leak.every) == (per_call * 64 * KIB, round(per_call), 1)


@pytest.mark.parametrize(("leaks", "every"), [("yn", 2), ("yyn", 1)])
def test_the_bytes_are_those_of_the_calls_that_the_report_names(leaks, every):
    kept, made = [], itertools.cycle(leaks)

    def step():
        if next(made) == "y":
            kept.append(torch.ones(128, 128))

    [leak] = find_leaks(step, warmup=0, runs=12)
    assert leak.every == every
    expected = 64 * KIB * leaks.count("y") * every / len(leaks)
    assert abs(leak.nbytes - expected) <= 0.1 * expected
