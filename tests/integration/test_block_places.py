"""Where a block is: its thread, its folder, its limit, and threads that others watch."""

from __future__ import annotations

import gc
import sys
import threading

import pytest
import torch

import memwatch
from memwatch.errors import MemoryLimitError, MemwatchError


@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_a_block_cannot_be_left_in_another_thread(native, intercept, monkeypatch):
    """A block is active in one thread. In another thread it raises an error and stays open."""
    monkeypatch.setenv("MEMWATCH_NATIVE", native)
    errors = []

    def leave():
        try:
            prof.__exit__(None, None, None)
        except MemwatchError as error:
            errors.append(str(error))

    prof = memwatch.profile(intercept=intercept)
    prof.__enter__()
    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    torch.ones(3).exp()
    prof.__exit__(None, None, None)
    assert len(errors) == 1
    assert "leave it in that thread" in errors[0]
    assert "aten.exp.default" in set(prof.ops["name"])


def test_a_resize_counts_for_the_limit():
    storage = torch.UntypedStorage(8)
    with memwatch.profile(limit_bytes=1 << 30):
        torch.tensor([], dtype=torch.uint8).set_(storage).add_(1)
        with pytest.raises(MemoryLimitError):
            storage.resize_((1 << 30) + 8)


def test_a_program_may_change_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below").mkdir()
    with memwatch.profile(path="run.memwatch") as prof:
        torch.ones(3).exp()
        monkeypatch.chdir(tmp_path / "below")
    assert prof.peak_increase_bytes > 0


def test_threads_under_a_debugger_keep_their_variables(monkeypatch):
    """Their frames are not read: up to Python 3.12, a read would undo variables that the debugger writes back."""
    over, errors = threading.Event(), []

    def work():
        while not over.is_set():
            value = [1]
            try:
                step(value)
            except UnboundLocalError as error:
                errors.append(error)
                return

    def trace(frame, event, argument):
        sum(range(50))
        return trace

    def step(value):
        other = len(value)
        return other + len(value)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threading.settrace(trace)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(5):
            with memwatch.profile():
                held = [torch.ones(64, 64) for _ in range(20)]
                del held
    finally:
        over.set()
        thread.join()
        threading.settrace(None)
        sys.setswitchinterval(interval_s)
    assert errors == []


def test_parameters_of_models_that_are_gone_are_forgotten():
    """The cost of a step does not grow with the number of dead models."""
    with memwatch.profile() as prof:
        for _ in range(20):
            torch.nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward()
        gc.collect()
        torch.nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward()
        optimizer = torch.optim.SGD([torch.ones(3, requires_grad=True)], lr=0.1)
        optimizer.step()
        known = list(prof._session.context.owners.parameters)
        assert [each.name for each in known if each() is None] == []
        assert len(known) >= 1


OPEN_AT_EXIT = """
import sys, torch, memwatch
prof = memwatch.profile(sys.argv[1], intercept=sys.argv[2])
prof.__enter__()
kept = torch.nn.Linear(64, 64)(torch.ones(3, 64))
kept.sum().backward()
"""


@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_a_block_that_is_open_when_python_exits_is_ended_then(intercept, native, fresh_python, tmp_path):
    """As a cell of a notebook leaves it: Python exits cleanly, and the file is whole."""
    path = tmp_path / "open.memwatch"
    done = fresh_python(OPEN_AT_EXIT, str(path), intercept, whole_end=True, MEMWATCH_NATIVE=native)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert memwatch.load(path).meta["complete"]
