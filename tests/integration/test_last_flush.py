"""When rows are written: a flush has a price of its own, so a few ops wait, and not for long."""

from __future__ import annotations

from memwatch.record.clock import Clock
from memwatch.record.flush import LastFlush

LONG_S = 1000


def test_few_ops_wait_and_many_are_written():
    """A thousand ops are worth a flush; after it the next ones wait again."""
    started = [7]
    last = LastFlush(started, Clock())
    assert not last.is_long_ago(LONG_S)
    started[0] += 999
    assert not last.is_long_ago(LONG_S)
    started[0] += 1
    assert last.is_long_ago(LONG_S)
    last.is_now()
    assert not last.is_long_ago(LONG_S)


def test_few_ops_wait_no_longer_than_was_said():
    """A killed run loses the records of a bounded time only."""
    last = LastFlush([0], Clock())
    assert last.is_long_ago(0)
