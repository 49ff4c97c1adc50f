"""One failure for each cause: a leak that forty tests show is told in full once."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pytest_memwatch.causes import SHOWN_TESTS

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def fold_failures(reporter: Any) -> None:
    """Have the terminal's failures and its short summary leave out tests whose causes others have shown.

    Only what these two print changes. The tests still count as failed, and other plugins see all of them.

    Args:
        reporter: pytest's terminal reporter.
    """
    for name, most in (("summary_failures", 1), ("short_test_summary", SHOWN_TESTS)):
        setattr(reporter, name, _folded(reporter, getattr(reporter, name), most))


def _folded(reporter: Any, show: Callable[[], None], most: int) -> Callable[[], None]:
    @functools.wraps(show)
    def showing() -> None:
        failed = reporter.stats.get("failed")
        if not failed or reporter.verbosity > 0:
            return show()
        reporter.stats["failed"] = one_for_each_cause(failed, most)
        try:
            return show()
        finally:
            reporter.stats["failed"] = failed

    return showing


def one_for_each_cause(reports: list[pytest.TestReport], most: int = 1) -> list[pytest.TestReport]:
    """Leave out the tests that failed for nothing but leaks whose causes other tests have shown.

    Args:
        reports: the reports of failed tests, in order.
        most: how many tests show a cause.
    """
    shown: dict[str, int] = {}
    kept = []
    for report in reports:
        causes = _causes_alone(report)
        if not causes or any(shown.get(cause, 0) < most for cause in causes):
            kept.append(report)
            for cause in causes:
                shown[cause] = shown.get(cause, 0) + 1
    return kept


def _causes_alone(report: pytest.TestReport) -> set[str]:
    """Return the causes of a failure that has nothing else to show, neither a traceback nor a peak."""
    data = getattr(report, "memwatch", None) or {}
    only_leaks = data.get("failed") == "leak" and isinstance(report.longrepr, str)
    return {leak["cause"] for leak in data.get("leaks", [])} if only_leaks else set()
