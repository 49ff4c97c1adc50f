"""Each excuse lets a program pass that would be reported without it, and no program with a leak."""

from __future__ import annotations

import functools
import itertools
from collections import deque

import numpy as np
import pytest
import torch

from memwatch.leaks import TensorLeakError, check_leaks, excuses, find_leaks

WINDOW = deque([torch.ones(16)], maxlen=8)
SLOTS: list[torch.Tensor | None] = []
for _ in range(3):
    SLOTS.append(None)
BOX: list[torch.Tensor | None] = [None]
TENSORS: list[torch.Tensor] = []
OLDER = torch.ones(16)
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


def keeps_a_view_of_dlpack(begin, end, *, with_its_owner):
    tensor = torch.ones(16)
    TENSORS.append(torch.from_dlpack(tensor[begin:end]))
    TENSORS.extend([tensor] * with_its_owner)


@pytest.mark.parametrize(("begin", "end"), [(0, 16), (0, 4), (12, 16)])
@pytest.mark.parametrize("with_its_owner", [False, True])
def test_memory_that_two_storages_share_counts_once(begin, end, with_its_owner):
    """`from_dlpack` makes a storage over a part of the memory, and keeps all of it."""
    program = functools.partial(keeps_a_view_of_dlpack, begin, end, with_its_owner=with_its_owner)
    assert leaked(program) == 64
    (leak,) = find_leaks(program)
    assert (leak.nbytes, leak.count) == (64, 1)


def keeps_arrays_of_one_buffer():
    array = np.zeros(16, np.float32)
    TENSORS.extend([torch.from_numpy(array[:8]), torch.from_numpy(array), torch.from_numpy(array[12:])])


def keeps_views_of_an_older_tensor():
    TENSORS.append(torch.from_dlpack(OLDER[2:6]))


def test_memory_of_an_array_counts_once_though_several_tensors_show_it():
    assert leaked(keeps_arrays_of_one_buffer) == 64


def test_views_of_an_older_tensor_take_no_memory():
    assert leaked(keeps_views_of_an_older_tensor) == 0
    assert find_leaks(keeps_views_of_an_older_tensor) == []


def test_each_excuse_has_a_program_and_a_reason_of_its_own():
    names = {excuse.place.__name__ for excuse in excuses.EXCUSES}
    assert names == set(PROGRAMS)
    assert len({excuse.reason for excuse in excuses.EXCUSES}) == len(names)
