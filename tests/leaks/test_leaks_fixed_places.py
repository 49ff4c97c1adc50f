"""A tensor in a place that existed before is not growth: slots of a list, of an array, and the blocks of a tee."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from memwatch.leaks import TensorLeakError, check_leaks, find_leaks
from memwatch.leaks.known_causes import KnownCauses

SLOTS = [None] * 3
MANY_SLOTS = [None] * 64
OUTPUTS = [None, None]
ROWS = np.empty(5, dtype=object)
GROWING = SimpleNamespace(rows=np.empty(0, dtype=object))
MODELS = []
TABLE = {}


class Ends(NamedTuple):
    first: object
    second: object


def ends():
    return Ends(*itertools.tee(torch.ones(16) for _ in itertools.count()))


BOTH_READ, ONE_READ, ONE_BEHIND = ends(), ends(), ends()


def leaks_of_a_pass(fn, known=None):
    try:
        check_leaks(known=known)(fn)()
    except TensorLeakError as error:
        return error.leaks
    return []


def fill(slots, places):
    slots[next(places)] = torch.ones(16)


def by_turns(slots):
    return slots, itertools.cycle(range(len(slots)))


def append_a_row():
    rows = np.empty(len(GROWING.rows) + 1, dtype=object)
    rows[:-1] = GROWING.rows
    rows[-1] = torch.ones(16)
    GROWING.rows = rows


def read_first(pair):
    next(pair.first)


def read_both():
    next(BOTH_READ.first)
    next(BOTH_READ.second)


def test_slots_that_are_filled_for_the_first_time_are_no_leak():
    """In one pass each, the last of them too where earlier passes saw an empty one; the next value replaces it."""
    known, slots = KnownCauses(), by_turns(SLOTS)
    told = [leaks_of_a_pass(lambda: fill(*slots), known) for _ in range(2 * len(SLOTS))]
    assert told == [[]] * len(told)


def test_more_slots_than_calls_are_no_leak():
    """Further calls do not reach the last one."""
    assert find_leaks(fill, *by_turns(MANY_SLOTS)) == []


def test_what_is_appended_to_a_list_with_empty_places_is_a_leak():
    """Whatever lies before it."""
    (leak,) = find_leaks(lambda: OUTPUTS.append(torch.ones(16)))
    assert (leak.nbytes, leak.count) == (64, 1)
    assert [each.cause for each in leaks_of_a_pass(lambda: OUTPUTS.append(torch.ones(16)))] == [leak.cause]


def test_a_list_made_with_its_places_is_filled_by_one_pass():
    """Its last place, or its only one: a box that a function writes to. But not with one more, nor with a graph."""
    box, three, weight = [None], [0.0] * 3, torch.ones(16, requires_grad=True)

    def put(slots, value):
        slots[-1] = value

    assert leaks_of_a_pass(lambda: put(box, (torch.ones(16), torch.ones(16)))) == []
    assert leaks_of_a_pass(lambda: put(three, torch.ones(16))) == []
    for _ in range(9):  # at whatever length
        (leak,) = leaks_of_a_pass(lambda: box.append(torch.ones(16)))
        assert leak.nbytes == 64
    (leak,) = leaks_of_a_pass(lambda: put(three, (weight * 2).exp().sum()))
    assert leak.keeps_graph


def test_a_tensor_that_grows_in_a_box_is_told_by_one_pass():
    """The place stays, the tensor in it becomes larger."""
    box = [torch.ones(16)]

    def grow():
        box[0] = torch.cat([box[0], torch.ones(16)])

    (leak,) = leaks_of_a_pass(grow)
    assert leak.grows


def test_an_array_of_objects_has_fixed_places():
    """The array fills up during the measured calls.

    It is distinguished from an array that each call makes larger.
    """
    _, places = by_turns(ROWS)
    assert leaks_of_a_pass(lambda: fill(ROWS, places)) == []
    assert find_leaks(lambda: fill(ROWS, places)) == []
    (leak,) = find_leaks(append_a_row)
    assert [each.cause for each in leaks_of_a_pass(append_a_row)] == [leak.cause]


def test_what_both_ends_of_a_tee_have_read_is_no_leak():
    """A tee frees it in blocks of 57."""
    assert leaks_of_a_pass(read_both) == []
    assert find_leaks(read_both) == []


@pytest.mark.parametrize("pair", [ONE_READ, ONE_BEHIND], ids=["one_read", "one_behind"])
def test_what_one_end_of_a_tee_has_not_read_is_a_leak(pair):
    """It waits there for the end that is behind."""
    if pair is ONE_BEHIND:
        next(pair.second)
    (leak,) = find_leaks(read_first, pair)
    assert [each.cause for each in leaks_of_a_pass(lambda: read_first(pair))] == [leak.cause]


def test_one_more_model_of_a_list_is_told_by_one_pass():
    """Neither the first model is reported, nor one that replaces another."""

    def replace():
        MODELS[0] = nn.Linear(8, 8)

    def add():
        MODELS.append(nn.Linear(8, 8))

    assert leaks_of_a_pass(add) == []
    assert leaks_of_a_pass(replace) == []
    (leak,) = leaks_of_a_pass(add)
    assert (leak.nbytes, leak.count) == (288, 2)
    assert [each.cause for each in find_leaks(add)] == [leak.cause]


def test_one_more_object_with_a_model_is_told_by_one_pass():
    """This holds for dictionaries and lists. An attribute beside another one is not an entry."""

    def add():
        TABLE[len(TABLE)] = SimpleNamespace(model=nn.Linear(8, 8))

    def set_another():
        GROWING.second = nn.Linear(8, 8)

    GROWING.first = nn.Linear(8, 8)
    assert leaks_of_a_pass(add) == []
    assert leaks_of_a_pass(set_another) == []
    (leak,) = leaks_of_a_pass(add)
    assert [each.cause for each in find_leaks(add)] == [leak.cause]
