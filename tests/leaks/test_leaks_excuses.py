"""Each excuse lets a program pass that would be reported without it, and no program with a leak."""

from __future__ import annotations

import itertools
from collections import deque

import pytest
import torch

from memwatch.leaks import TensorLeakError, check_leaks, excuses

WINDOW = deque([torch.ones(16)], maxlen=8)
SLOTS: list[torch.Tensor | None] = []
for _ in range(3):
    SLOTS.append(None)
BOX: list[torch.Tensor | None] = [None]
TENSORS: list[torch.Tensor] = []
FIRST, SECOND = itertools.tee(torch.ones(16) for _ in itertools.count())


def makes_a_constant_of_torch():
    torch.nn.functional.table_of_a_test = torch.ones(16)


def appends_to_a_window():
    WINDOW.append(torch.ones(16))


def reads_both_ends():
    next(FIRST)
    next(SECOND)


def fills_a_slot():
    SLOTS[1] = torch.ones(16)


def fills_a_box():
    BOX[0] = torch.ones(16)


PROGRAMS = {
    "_of_torch": makes_a_constant_of_torch,
    "_bounded": appends_to_a_window,
    "_read_by_all": reads_both_ends,
    "_in_slot": fills_a_slot,
    "_in_its_place": fills_a_box,
}


@pytest.fixture(autouse=True)
def _fresh():
    torch.set_num_threads(1)
    yield
    clears()


def clears():
    vars(torch.nn.functional).pop("table_of_a_test", None)
    BOX[0] = SLOTS[1] = None
    TENSORS.clear()


def leaked(program):
    try:
        check_leaks()(program)()
    except TensorLeakError as error:
        return sum(leak.nbytes for leak in error.leaks)
    return 0


def without(name):
    return tuple(excuse for excuse in excuses.EXCUSES if excuse.place.__name__ != name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_excuse_is_needed(name, monkeypatch):
    assert leaked(PROGRAMS[name]) == 0
    clears()
    monkeypatch.setattr(excuses, "EXCUSES", without(name))
    assert leaked(PROGRAMS[name]) == 64


def shares_memory():
    TENSORS.append(torch.from_dlpack(torch.ones(16)))


def test_memory_that_two_storages_share_counts_once(monkeypatch):
    assert leaked(shares_memory) == 64
    clears()
    monkeypatch.setattr(excuses, "EXCUSES", without("_shares_memory"))
    assert leaked(shares_memory) == 2 * 64


def test_each_excuse_has_a_program_and_a_reason_of_its_own():
    names = {excuse.place.__name__ for excuse in excuses.EXCUSES}
    assert names == {*PROGRAMS, "_shares_memory"}
    assert len({excuse.reason for excuse in excuses.EXCUSES}) == len(names)
