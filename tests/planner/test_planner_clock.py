"""The time limit counts the planner's work: a machine that is busy with other programs takes no plans away."""

from __future__ import annotations

import pytest

from memwatch.planner.request import Clock, working_time


@pytest.mark.parametrize(
    ("cpu_share", "over_at_s"),
    [
        pytest.param(1.0, 10, id="alone"),
        pytest.param(4.0, 10, id="many threads"),
        pytest.param(0.5, 20, id="half of the machine"),
        pytest.param(0.0, 30, id="no turn at all"),
    ],
)
def test_a_limit_is_one_of_work(cpu_share, over_at_s):
    """Ten seconds are up when the process has worked so long, at the latest when 30 have passed on the wall."""
    now_s = [0.0]
    clock = Clock.of(10.0, working_time(lambda: now_s[0], lambda: cpu_share * now_s[0]))
    now_s[0] = over_at_s - 0.5
    assert not clock.is_over()
    now_s[0] = over_at_s
    assert clock.is_over()
