"""Judge a test that left tensors in a registry after the next test's setup, which may be what empties the registry.

Some suites clear their registries at the start of each test (`pyro.clear_param_store()` in `setup_method`), others
in the teardown of a fixture. The body of a test has ended by then, and its report is due. So pytest is given a report
that nobody shows or counts, and the real one follows: passed if all the tensors are free by then, else failed.
"""

from __future__ import annotations

import copy
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from pytest_memwatch.causes import LEAK_SECTION
from pytest_memwatch.options import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from pytest_memwatch.examine import Examination

_UNCOUNTED: Final = "setup"
"""The phase of which pytest and other plugins neither show nor count a report that passed."""


class _Verdict(NamedTuple):
    """The report of a test that waits for the next test's setup."""

    item: pytest.Item
    report: pytest.TestReport
    examination: Examination


class Postponed:
    """A plugin that holds the report of a test back while its tensors may still be freed by fixtures."""

    def __init__(self) -> None:
        self._waiting: list[_Verdict] = []

    def hold(
        self,
        item: pytest.Item,
        call: pytest.CallInfo[None],
        report: pytest.TestReport,
        examination: Examination,
    ) -> pytest.TestReport:
        """Return the report to give to pytest now: an uncounted one if the verdict has to wait."""
        if not report.failed or not examination.may_be_emptied:
            return report
        error = None if call.excinfo is None else call.excinfo.value
        if error is None or error is not examination.error:
            return report
        # the calls in its traceback keep the values of the test's fixtures alive, and these the tensors
        error.__traceback__ = None
        if getattr(sys, "last_value", None) is error:
            sys.last_traceback = None
        self._waiting.append(_Verdict(item, report, examination))
        uncounted = copy.copy(report)
        uncounted.when, uncounted.outcome, uncounted.longrepr = _UNCOUNTED, "passed", None
        uncounted.sections = []
        del uncounted.memwatch
        return uncounted

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Judge the tests before once a test is set up; a test that is skipped sets nothing up."""
        yield
        self._judge()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, None, None]:
        """Judge the last test after its teardown, because no setup follows."""
        try:
            yield
        finally:
            if nextitem is None:
                self._judge()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Judge what waits where the session was stopped."""
        self._judge()

    def _judge(self) -> None:
        waiting, self._waiting = self._waiting, []
        for item, report, examination in waiting:
            if examination.is_emptied:
                _pass(report)
            with _as_current_item(item):
                item.ihook.pytest_runtest_logreport(report=report)


def _pass(report: pytest.TestReport) -> None:
    data: dict[str, Any] = report.memwatch
    data.update(failed=None, leaks=[], emptied=data["leaks"])
    report.outcome, report.longrepr = "passed", None
    report.sections = [section for section in report.sections if section[0] != LEAK_SECTION]


@contextmanager
def _as_current_item(item: pytest.Item) -> Iterator[None]:
    """Let a worker of xdist send the report of an earlier test: it numbers each report by the test that runs."""
    worker: Any = _worker_of_xdist(item.config)
    if worker is None:
        yield
        return
    current = worker.item_index
    worker.item_index = item.session.items.index(item)
    try:
        yield
    finally:
        worker.item_index = current


def _worker_of_xdist(config: pytest.Config) -> object | None:
    plugins = config.pluginmanager.get_plugins()
    return next((plugin for plugin in plugins if hasattr(plugin, "nextitem_index")), None)


def postponed_for(config: pytest.Config) -> Postponed | None:
    """Return the plugin, or None where each report is due at once, as with a debugger."""
    is_due = config.getoption("usepdb", default=False)
    if hasattr(config, "workerinput"):
        is_due = is_due or _worker_of_xdist(config) is None
    return None if is_due or config.stash[SETTINGS].leaks != "all" else Postponed()
