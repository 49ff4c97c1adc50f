"""Growth is memory that calls add behind one holder, of any size.

Windows, averages and caches that fill do not grow.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from memwatch.leaks import TensorLeakError, check_leaks, find_leaks

sys.path.insert(0, str(Path(__file__).parent))
import programs_growth as programs

NAMES = {repr(shape.__name__) for shape in [*programs.LEAKS, *programs.INNOCENT]}
LEAKING = {repr(shape.__name__) for shape in programs.LEAKS}


@pytest.fixture(autouse=True)
def _fresh():
    torch.set_num_threads(1)
    programs.fresh()
    yield
    programs.STATE.clear()


def all_shapes():
    for shape in [*programs.LEAKS, *programs.INNOCENT]:
        shape()


def innocent_shapes():
    for shape in programs.INNOCENT:
        shape()


def accused(leaks):
    """Return the shapes that some leaks are about."""
    return {edge.name for leak in leaks for edge in leak.edges} & NAMES


def leaks_of_one_pass(fn):
    try:
        check_leaks()(fn)()
    except TensorLeakError as error:
        return error.leaks
    return []


def test_calls_that_grow_in_any_way_are_told_from_those_that_do_not():
    """Lists, records and keys of any sizes, one tensor that grows, a queue that takes more than it drops."""
    leaks = find_leaks(all_shapes)
    assert accused(leaks) == LEAKING
    by_shape = {name: [leak for leak in leaks if accused([leak]) == {name}] for name in NAMES}
    assert sum(leak.nbytes for leak in by_shape["'concatenated'"]) == 2 * 8 * 4
    assert sum(leak.nbytes for leak in by_shape["'resized'"]) == 8 * 4
    assert sum(leak.nbytes for leak in by_shape["'layers_of_a_cache'"]) == 4 * 8 * 4
    assert sum(leak.nbytes for leak in by_shape["'beside_an_average'"]) == 8 * 4


def test_nothing_that_only_moves_on_is_accused():
    """Averages, last outputs, windows and scratch memory of any sizes keep as much as they drop."""
    assert [str(leak) for leak in find_leaks(innocent_shapes)] == []


@pytest.mark.whole
def test_one_pass_accuses_what_further_calls_accuse():
    """Once windows are full, check_leaks reports for a pass what find_leaks reports for calls."""
    for shape in [*programs.LEAKS, *programs.INNOCENT]:
        for _ in range(4):
            shape()
        assert bool(leaks_of_one_pass(shape)) == (shape in programs.LEAKS), shape.__name__


@pytest.mark.parametrize("most", [5, 17])
def test_a_window_that_fills_is_no_leak(most):
    """It is called until it stops growing."""
    assert find_leaks(programs.window_that_fills(most)) == []
    assert len(programs.STATE["buffer"]) == most


def test_a_cache_that_fills_is_no_leak():
    """This holds also if the cache gets its last key on the eleventh call."""
    assert find_leaks(programs.cache_of(11)) == []


def test_a_list_beside_a_window_of_the_same_sizes_is_a_leak():
    """The window stops, the list does not."""
    leaks = find_leaks(programs.window_beside_a_list)
    assert [leak.count for leak in leaks] == [1]
    assert "'list'" in {edge.name for edge in leaks[0].edges}


@pytest.mark.parametrize("nth", [2, 3, 4])
def test_a_leak_on_every_nth_call_is_found(nth):
    """The report says how many calls there are to one that leaks, and how much that one leaks."""
    (leak,) = find_leaks(programs.on_every(nth))
    assert (leak.every, leak.nbytes, leak.count) == (nth, 64, 1)
    assert f"64 B in 1 tensor on one call in {nth}," in str(leak)


def test_a_cycle_on_every_other_call_is_found():
    """The calls in between leave nothing. They do not excuse the others, whatever holds the tensors."""
    (leak,) = find_leaks(programs.on_every(2, programs.ring))
    assert (leak.kind, leak.every) == ("cycle", 2)


def test_the_number_of_calls_is_bounded():
    """A list that never stops is called 36 times and once to warm up; asked for 3, it is called 3 times."""
    kept = []
    assert find_leaks(lambda: kept.append(torch.ones(16)))
    assert len(kept) == 37
    kept.clear()
    (leak,) = find_leaks(lambda: kept.append(torch.ones(len(kept) + 1)), warmup=1, runs=2)
    assert len(kept) == 3
    assert leak.count == 1


def test_calls_end_once_they_left_too_much(monkeypatch):
    """Further calls are for small leaks: what they leave has a limit."""
    monkeypatch.setattr("memwatch.leaks.find.MOST_BYTES", 6 * 64)
    kept = []
    assert find_leaks(lambda: kept.append(torch.ones(16)))
    assert len(kept) == 9


def test_a_leak_that_no_container_holds_needs_no_further_calls():
    """Each call sets an attribute of a new name: five calls show it."""
    calls = []
    holder = programs.Record(None)

    def sets_one_more():
        calls.append(None)
        setattr(holder, f"output{len(calls)}", torch.ones(16))

    assert find_leaks(sets_one_more)
    assert len(calls) == 5


def make(rows):
    return torch.ones(rows)


def asks_a_factory():
    programs.STATE["records"].append(make(16))


def test_the_caller_of_a_factory_is_told_beside_it():
    """The line that made the tensor is the factory's; the one to change asked for it."""
    (leak,) = find_leaks(asks_a_factory)
    assert leak.site.endswith(" make")
    assert leak.caller.endswith(" asks_a_factory")
    (leak,) = leaks_of_one_pass(asks_a_factory)
    assert leak.caller.endswith(" asks_a_factory")
    assert f"{leak.site} (Tensor [16] float32), called from {leak.caller}" in str(leak)


def test_a_function_that_only_the_check_called_has_no_caller():
    """The line that calls find_leaks asked for no tensor."""
    (leak,) = find_leaks(programs.on_every(1))
    assert leak.caller is None or leak.caller.endswith(" call")


class Session:
    def __init__(self):
        self.name = ""
        self.outputs = []

    def add(self):
        self.outputs.append(torch.ones(16))


def test_an_attribute_has_the_line_that_assigns_it():
    """It is neither the line of the class nor that of its first function."""
    session = Session()
    (leak,) = find_leaks(session.add)
    (edge,) = [edge for edge in leak.edges if edge.name == "outputs"]
    assert edge.line == Session.__init__.__code__.co_firstlineno + 2


class Registry:
    def name(self):
        return "a function before the one that assigns"

    @classmethod
    def begin(cls):
        cls.outputs = []


class Settings:
    outputs: ClassVar[list[torch.Tensor]] = []

    def name(self):
        return "the only function"


def test_a_class_attribute_has_the_line_that_assigns_it_or_none():
    """The line of the first function of a class would be no place to edit."""
    Registry.begin()
    for owner, line in ((Registry, Registry.begin.__func__.__code__.co_firstlineno + 2), (Settings, None)):
        (leak,) = leaks_of_one_pass(lambda owner=owner: owner.outputs.append(torch.ones(16)))
        (edge,) = [edge for edge in leak.edges if edge.name == "outputs"]
        assert edge.line == line
        owner.outputs.clear()


def test_a_cycle_of_two_objects_is_one_leak():
    """Each of the two holds a tensor and the other one: cutting either reference frees both."""

    def pair():
        left, right = Session(), Session()
        left.right, right.left = right, left
        left.output, right.output = torch.ones(16), torch.ones(32)

    (leak,) = find_leaks(pair)
    assert (leak.count, leak.nbytes) == (2, 192)


def test_the_time_of_the_check_is_no_time_that_tensors_are_held(monkeypatch):
    """A diagnosis that takes long makes nothing be held longer."""
    from memwatch.leaks import find as searching

    diagnose = searching.diagnose

    def slow(*args, **kwargs):
        time.sleep(0.3)
        return diagnose(*args, **kwargs)

    monkeypatch.setattr(searching, "diagnose", slow)
    monkeypatch.setattr("memwatch.leaks.check.diagnose", slow)
    (leak,) = find_leaks(programs.ring)
    (alone,) = leaks_of_one_pass(programs.ring)
    assert max(leak.held_s, alone.held_s) < 0.25
