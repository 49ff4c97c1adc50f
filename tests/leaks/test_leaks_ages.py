"""A dictionary that was empty before the runs is reported like any other: gc tracks it only once it has a tensor."""

from __future__ import annotations

import functools

import pytest
import torch

from memwatch.kinds.edges import EdgeKind
from memwatch.leaks import TensorLeakError, check_leaks, find_leaks

BY_BATCH = {}
COPIED = {}


class Scorer:
    def __init__(self):
        self.weight = torch.ones(64, 8)

    @functools.cache  # noqa: B019 - the leak
    def score(self, level):
        return level


def fill():
    BY_BATCH[object()] = torch.ones(64, 8)


def copy_and_fill():
    global COPIED  # noqa: PLW0603 - the leak
    COPIED = {**COPIED, object(): torch.ones(64, 8)}


def score():
    Scorer().score(1)


def one_pass(function):
    with pytest.raises(TensorLeakError) as caught, check_leaks():
        function()
    (leak,) = caught.value.leaks
    return leak


@pytest.mark.parametrize("function", [fill, copy_and_fill, score])
def test_the_first_entry_of_a_dictionary_has_the_cause_of_the_later_ones(function):
    """One pass over an empty one, many calls, and one pass over a full one tell one cause, and where to cut."""
    first = one_pass(function)
    (leak,) = find_leaks(function)
    assert first.cause == leak.cause == one_pass(function).cause
    assert leak.count == 1
    assert leak.cut.kind in (EdgeKind.VALUE, EdgeKind.KEY, EdgeKind.CACHE_RESULT)


def test_two_dictionaries_that_were_empty_are_two_leaks():
    """Neither is taken for the other, though gc shows both as new."""
    left, right = {}, {}

    def fill_both():
        left[object()] = torch.ones(64, 8)
        right[object()] = torch.ones(64, 8)

    leaks = find_leaks(fill_both)
    assert sorted(leak.nbytes for leak in leaks) == [2048, 2048]


GROUPS = [{}]


def test_a_dictionary_in_a_list_is_an_entry_of_the_list():
    """Whether it is from before the runs is not known: what grows is the list."""

    def add_group():
        GROUPS.append({"params": [torch.ones(64, 8)]})

    first = one_pass(add_group)
    (leak,) = find_leaks(add_group)
    assert first.cause == leak.cause
    assert leak.cut.kind is EdgeKind.ITEM
    assert "deque(maxlen=" in leak.advice
