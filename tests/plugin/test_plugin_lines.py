"""The limits of the search for the lines of a suite's leaks."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from pytest_memwatch.examine import MOST_OPS, MOST_TESTS, LineSearch

import memwatch

KEPT: list[torch.Tensor] = []


@pytest.fixture(scope="module")
def leak():
    """Return a leak without a known line."""
    [found] = memwatch.find_leaks(lambda: KEPT.append(torch.ones(64)))
    KEPT.clear()
    return dataclasses.replace(found, site=None)


def _tests_that_note(search, leaks, *, ops):
    """Let tests of so many ops leave these leaks until lines are noted no more: how many noted them."""
    noted = 0
    while search.is_on:
        search.learn(leaks, noted_ops=ops, may_have_grown=False)
        noted += 1
        assert noted <= MOST_TESTS
    return noted


@pytest.mark.parametrize(("ops", "tests"), [(0, MOST_TESTS), (MOST_OPS // 4, 4), (MOST_OPS, 1)])
def test_a_line_is_looked_for_in_so_many_tests_and_ops(leak, ops, tests):
    """A search ends after twenty tests or 20,000 ops.

    If the search for a cause found no line, the same cause does not start another search.
    """
    search = LineSearch()
    assert not search.is_on
    search.learn([leak], noted_ops=None, may_have_grown=False)
    assert _tests_that_note(search, [leak], ops=ops) == tests


def test_a_line_that_is_found_ends_its_search_alone(leak):
    """A line for one cause ends the search for this cause. The search for another cause goes on."""
    search = LineSearch()
    other = dataclasses.replace(leak, cause="cause-00000000")
    search.learn([leak, other], noted_ops=None, may_have_grown=False)
    search.learn([dataclasses.replace(leak, site="test_x.py:3 in f")], noted_ops=1, may_have_grown=False)
    assert search.is_on
    search.learn([dataclasses.replace(other, site="test_x.py:9 in g")], noted_ops=1, may_have_grown=False)
    assert not search.is_on


def test_growth_of_one_tensor_is_looked_for_from_the_first_larger_one(leak):
    """A larger tensor that replaces a smaller one starts a search. A tensor that grew starts it once more."""
    search = LineSearch()
    search.learn([], noted_ops=None, may_have_grown=True)
    assert _tests_that_note(search, [], ops=0) == MOST_TESTS
    grows = dataclasses.replace(leak, grows=True, site="test_x.py:3 in f")
    assert search.is_first_growth(grows)
    assert not search.is_first_growth(grows)
    assert search.is_on


def test_a_line_that_the_profile_of_the_test_saw_is_told(session):
    """The first leak already has its line if one line made all leaked memory of its size.

    With two lines it has none.
    """
    result = session(
        """
        import torch
        KEPT, OTHERS = [], []
        def make(): return torch.ones(100)
        def test_one():
            torch.zeros(100)
            KEPT.append(make())
        def test_two():
            OTHERS.append(torch.ones(5))
            OTHERS.append(torch.zeros(5))
        """,
        "--memwatch-leaks=all",
        "--memwatch",
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["  made at: *.py:3 in make (*), called from *.py:6 in test_one"])
    result.stdout.fnmatch_lines(["  made at: unknown line (Tensor ?5? float32)"])
