"""An error inside the recorder costs the recorder a row, and the program nothing."""

from __future__ import annotations

import gc

import pytest
import torch

import memwatch
from memwatch.record import session


def _running():
    return next(iter(session._running))


def _notes(prof):
    return [note.text for note in prof.capture.notes]


@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_an_exception_of_c_plus_plus_does_not_stop_an_op(intercept, monkeypatch):
    """pybind11 throws exceptions of its own if Python returns a value that C++ cannot take."""
    monkeypatch.setattr(session.Session, "backward_begins", lambda session: "no bool")
    x = torch.ones(3, requires_grad=True)
    with memwatch.profile(intercept=intercept) as prof:
        (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    assert any("is not recorded whole" in note and "cast" in note for note in _notes(prof))


DESTRUCTOR = """
import torch, memwatch
from memwatch.record import session
x = torch.ones(3, requires_grad=True)
with memwatch.profile():
    y = x.exp()
    counter = next(iter(session._running)).op_counter
    started, counter[0] = counter[0], "no number"
    del y
    counter[0] = started
print("alive")
"""


def test_a_pack_that_cannot_write_its_row_ends_without_a_word(fresh_python):
    """It is destroyed by autograd, from a destructor, where an exception of C++ ends the process."""
    done = fresh_python(DESTRUCTOR, whole_end=True)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


_MODULE = torch.nn.Identity()


def _collecting(phase, info):
    if phase == "start" and _collecting.on:
        _collecting.on = False  # the code that runs here makes objects too
        _deep(30)
        _collecting.on = True


def _deep(levels):
    return _deep(levels - 1) if levels else _MODULE(torch.ones(2))


def _place(levels):
    """Run an op below some frames; every place is a stack that is seen for the first time."""
    return _place(levels - 1) if levels else torch.ones(2).sin()


@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_what_runs_while_a_stack_is_walked_does_not_change_it(intercept):
    """A request for a frame may run gc, and gc may run calls of modules, whose stacks are walked too."""
    threshold = gc.get_threshold()
    _collecting.on = True
    gc.callbacks.append(_collecting)
    try:
        with memwatch.profile(intercept=intercept, holders=False, allocator=False) as prof:
            gc.set_threshold(1)
            for levels in range(40):
                _place(levels)
            gc.set_threshold(*threshold)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(_collecting)
    stacks = prof.capture.tables["stacks"]
    ops = prof.capture.tables["ops"]
    text = prof.capture.text
    sines = ops["stack"][[name == "aten.sin.default" for name in text(ops["name"])]].tolist()
    assert len(sines) == 40
    functions = list(zip(stacks["stack"].tolist(), text(stacks["function"]), strict=True))
    for levels, stack in enumerate(sines):
        names = [name for number, name in functions if number == stack]
        assert names.count("_place") == levels + 1
        assert "_deep" not in names
    assert len(prof.capture.tables["calls"]["module"]) > 0
    assert not any("not recorded" in note for note in _notes(prof))
