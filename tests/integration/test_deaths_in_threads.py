"""A storage dies when another thread drops it, also where the block's own thread starts no op for long after."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from worker_threads import NATIVE, WAYS, Worker

import memwatch

COUNT = 25_000
NBYTES = 4 * COUNT  # small enough for malloc's own memory, of which each thread has its part
ROUNDS = 3


@pytest.fixture
def worker():
    """Return a thread that ran before the block: no log has its frees."""
    worker = Worker()
    yield worker
    worker.end()


def _fill(space):
    """Take the places that tensors had in memory: one at the same address would show when the first was freed."""
    space += [bytearray(NBYTES) for _ in range(4)]


def _drop(worker, shared, space):
    def drop():
        del shared.tensor

    shared.tensor = torch.empty(COUNT)
    worker.do(drop)
    _fill(space)


def _outside_an_op(space):
    memory = torch.UntypedStorage(NBYTES)
    del memory
    _fill(space)


def _in_a_thread(space):
    thread = threading.Thread(target=lambda: torch.empty(COUNT))
    thread.start()
    thread.join()
    _fill(space)


@pytest.mark.parametrize("intercept", NATIVE, indirect=True)
@pytest.mark.parametrize("allocate", [_outside_an_op, _in_a_thread], ids=["outside an op", "in a new thread"])
def test_what_another_thread_dropped_is_gone_before_the_next_allocation(worker, allocate, intercept):
    """One tensor lives at once: the first is dropped before anything allocates, though no op starts in between."""
    space = []
    with memwatch.profile(intercept=intercept) as prof:
        for _ in range(ROUNDS):
            _drop(worker, SimpleNamespace(), space)
            allocate(space)
    assert prof.peak_increase_bytes == NBYTES


@pytest.mark.parametrize("intercept", NATIVE, indirect=True)
def test_a_death_is_as_of_when_it_came(worker, intercept):
    """Memory that the worker dropped has ended before the block's thread goes on, not at its next op."""
    with memwatch.profile(intercept=intercept) as prof:
        _drop(worker, SimpleNamespace(), [])
        prof.step()
        torch.empty(1)
    steps = prof.capture.tables["steps"]["time_ns"]
    assert prof.capture.tables["deaths"]["time_ns"][0] < steps[-1]


@pytest.mark.parametrize("intercept", WAYS, indirect=True)
def test_what_an_unheard_thread_frees_late_is_told(worker, intercept):
    """The Python recorder notices it at the next op. Memory of new threads is not noticed so."""
    with memwatch.profile(intercept=intercept) as prof:
        shared = SimpleNamespace()

        def drop():
            del shared.tensor

        def work():
            for _ in range(ROUNDS):
                shared.tensor = torch.empty(COUNT)
                worker.do(drop)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    notes = [text for kind, text in prof.notes if kind == "threads"]
    told = (
        "may have freed some of the",
        "memory that they free counts until the next op of the block's thread",
    )
    assert any(each in text for text in notes for each in told)
