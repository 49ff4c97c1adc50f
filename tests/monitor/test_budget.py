"""The processor time of the monitor: a credit at first, and less than 1 % of the time in a long run."""

from __future__ import annotations

import pytest

from memwatch.monitor import budget
from memwatch.monitor.budget import Budget


@pytest.fixture
def clock(monkeypatch):
    now_s = [1000.0]
    monkeypatch.setattr(budget.time, "monotonic", lambda: now_s[0])
    return now_s


def budgets():
    return (
        Budget(budget.SAMPLES_CREDIT_S, budget.SAMPLES_RATIO),
        Budget(budget.SEARCHES_CREDIT_S, budget.SEARCHES_RATIO),
    )


@pytest.mark.parametrize("hours", [0.5, 1, 10])
def test_all_that_is_spent_is_at_most_a_hundredth_of_a_long_run(hours, clock):
    both = budgets()
    spent_s = 0.0
    for _ in range(int(hours * 3600)):
        clock[0] += 1.0
        for each, cost_s in zip(both, (0.09, 0.65), strict=True):
            if each.wait_s(cost_s) == 0.0:
                each.spend(cost_s)
                spent_s += cost_s
    assert 0.5 * hours * 36 < spent_s <= hours * 36


def test_the_credit_is_enough_for_a_verdict_with_its_search(clock):
    samples, searches = budgets()
    for _ in range(15):
        assert samples.wait_s(0.09) == 0.0
        samples.spend(0.09)
    assert searches.wait_s(0.65 + 1.75) == 0.0


def test_something_that_cost_too_much_is_waited_for(clock):
    each = Budget(1.0, 0.01)
    each.spend(3.0)
    assert each.wait_s(0.5) == pytest.approx(250.0)
    clock[0] += 250.0
    assert each.wait_s(0.5) == pytest.approx(0.0)


def test_the_time_of_many_is_that_of_the_credit_and_then_of_the_ratio(clock):
    each = Budget(1.0, 0.005)
    assert each.seconds_for(5, 0.1, least_s=10.0) == 50.0
    assert each.seconds_for(20, 0.1, least_s=0.5) == pytest.approx(200.0)
    assert each.gap_s(0.1, least_s=0.5) == pytest.approx(2.0)
    each.spend(1.0)
    assert each.gap_s(0.1, least_s=0.5) == pytest.approx(20.0)
    each.renew_credit()
    assert each.gap_s(0.1, least_s=10.0) == 10.0
