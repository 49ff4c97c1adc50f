"""Of several references to one holder, a report names the one that tells a reader most."""

from __future__ import annotations

import queue
import threading

import pytest
import torch

from memwatch.kinds.edges import EdgeKind
from memwatch.kinds.leaks import LeakKind
from memwatch.leaks import TensorLeakError, check_leaks, find_leaks


def data():
    return torch.ones(64)


class Trainer:
    def __init__(self):
        self.kept, self.last = [], None

    def leaks(self):
        """Search for leaks in a call that has the object as its `self`."""
        return find_leaks(lambda: self.kept.append(data()))

    def leaks_of_a_value(self):
        return find_leaks(lambda: setattr(self, "last", data()))


TRAINER = Trainer()


def by_one_pass(step):
    """Return the leaks of one call."""
    with pytest.raises(TensorLeakError) as info, check_leaks():
        step()
    return info.value.leaks


PRODUCERS = []


def abandons_a_producer():
    """Leave a thread behind that waits in `Queue.put`, a function of Python's own."""
    values = queue.Queue(1)
    over = threading.Event()
    PRODUCERS.append((values.get, over.set))

    def work():
        while not over.is_set():
            values.put(data())

    threading.Thread(target=work, daemon=True).start()
    values.get()


def test_a_global_variable_is_named_before_the_argument_self_of_a_running_call():
    (leak,) = TRAINER.leaks()
    assert leak.holder.startswith("global `TRAINER` of module ")
    assert TRAINER.leaks_of_a_value() == []


@pytest.mark.parametrize("find", [find_leaks, by_one_pass])
def test_a_global_variable_is_named_before_a_local_one_that_is_nearer(find):
    kept = TRAINER.kept  # one reference from the list; the global variable needs two
    (leak,) = find(lambda: kept.append(data()))
    assert leak.holder.startswith("global `TRAINER` of module ")
    assert leak.edges[-1].kind is EdgeKind.ITEM


@pytest.mark.parametrize("find", [find_leaks, by_one_pass])
def test_a_local_variable_is_named_if_a_global_one_leads_to_another_list(find):
    local = TRAINER.other = []
    del TRAINER.other
    (leak,) = find(lambda: local.append(data()))
    assert leak.edges[0].kind in (EdgeKind.LOCAL, EdgeKind.CLOSURE_CELL)


def test_an_argument_is_named_if_nothing_else_has_the_object():
    (leak,) = Trainer().leaks()
    assert leak.holder.startswith("argument `self` of leaks ")


def test_the_programs_variable_is_named_before_an_argument_inside_a_function_of_python():
    leaks = find_leaks(abandons_a_producer, runs=2)
    for get, end in PRODUCERS:
        end()
        get()
    assert any(leak.holder.startswith("local `values` of work in thread ") for leak in leaks)
    assert all(leak.kind is LeakKind.RETAINED for leak in leaks)
    assert not any("argument `self` of put" in leak.holder for leak in leaks)
