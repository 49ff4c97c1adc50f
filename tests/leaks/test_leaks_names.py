"""Of several references to one holder, a report names the one that tells a reader most."""

from __future__ import annotations

import queue
import threading

import torch

from memwatch.kinds.leaks import LeakKind
from memwatch.leaks import find_leaks


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
