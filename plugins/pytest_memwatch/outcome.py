"""Put the findings of an examination into a test's report: outcome, sentence, sections, data, and the HTML page.

The report of a test that left tensors in a registry may have to wait for the next test's setup. Some suites clear their
registries at the start of each test (`pyro.clear_param_store()` in `setup_method`), others in the teardown of a
fixture. But pytest wants the report of a test right after its body. So the plugin first gives pytest a report that
nobody shows or counts. The real report follows: passed if all the tensors are free by then, and failed otherwise. If
caches or names keep tensors of a test, its report waits too, because the end of `monkeypatch` may free them.
"""

from __future__ import annotations

import copy
import hashlib
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from memwatch.errors import MemwatchError
from pytest_memwatch.options import SETTINGS
from pytest_memwatch.verdict import LEAK_SECTION, leak_data, leak_section

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path

    from memwatch.leaks import Leak
    from memwatch.reading import Reading
    from pytest_memwatch.examine import Examination

_LONGEST = 80  # characters of a text in a report; a guess
EXAMINATION: Final[pytest.StashKey[Examination]] = pytest.StashKey()
_UNCOUNTED: Final = "setup"
"""A phase of a test. If a report of this phase has passed, pytest and other plugins neither show nor count it."""


class PeakError(MemwatchError, AssertionError):
    """The body of a test added more memory than its limit, or than its baseline, allows."""


class FindingsError(MemwatchError, AssertionError):
    """The body of a test held memory that it could free or avoid."""


class FixtureError(MemwatchError):
    """A test read a peak from the `memwatch` fixture before it measured one."""


def page_path(folder: Path, nodeid: str) -> Path:
    """Return the path of a test's page: readable, of bounded length, and different for different tests."""
    words = re.sub(r"[^A-Za-z0-9_.-]+", "-", nodeid.rpartition("/")[2]).strip("-.")
    digest = hashlib.sha256(nodeid.encode("utf-8", "backslashreplace")).hexdigest()[:8]
    return folder / f"{words[:_LONGEST]}-{digest}.html"


def write_page(folder: Path, nodeid: str, reading: Reading | None, leaks: Sequence[Leak]) -> Path:
    """Write the page of a test and return its path.

    Args:
        folder: the folder for pages; it is created if it is missing.
        nodeid: the test.
        reading: the profile of its body, None if it was not measured.
        leaks: its leaks.
    """
    from memwatch.report import html, leak_page

    folder.mkdir(parents=True, exist_ok=True)
    path = page_path(folder, nodeid)
    if reading is None:
        return leak_page(leaks, path, title=nodeid, force=True)
    return html(reading, path, leaks=leaks, title=nodeid, force=True)


def running_examination(item: pytest.Item) -> Examination | None:
    """Return the examination of a test whose body still runs, so that a report is about one of its subtests."""
    examination = item.stash.get(EXAMINATION, None)
    return None if examination is None or examination.is_over else examination


def uncounted(report: pytest.TestReport) -> pytest.TestReport:
    """Return a copy of a report that nobody shows or counts."""
    copied = copy.copy(report)
    copied.when, copied.outcome, copied.longrepr = _UNCOUNTED, "passed", None
    copied.sections = []
    for name in ("memwatch", "wasxfail"):
        copied.__dict__.pop(name, None)
    return copied


def attach(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> Examination | None:
    """Attach the findings to the report as plain data, which xdist sends from a worker to the controller.

    Returns:
        The examination that has ended, if the test had one.
    """
    examination = item.stash.get(EXAMINATION, None)
    if examination is not None and not examination.is_over:
        examination = None  # one subtest has ended, and the test goes on
    error = None if call.excinfo is None else call.excinfo.value
    data: dict[str, Any] = {"failed": None}
    leaks: Sequence[Leak] = ()
    reading = None
    if examination is not None:
        del item.stash[EXAMINATION]
        examination.close()
        data, leaks, reading = examination.data, examination.leaks, examination.reading
    if examination is not None and error is not None and error is examination.error:
        report.sections += examination.sections
        if report.failed:
            report.longrepr = examination.sentence  # the traceback would only show calls of memwatch
    elif report.failed and _is_leak_error(error):
        leaks = error.leaks  # type: ignore[union-attr]
        # the test itself checked for leaks: its traceback stays and shows where
        data.update(failed="leak", leaks=[leak_data(leak) for leak in leaks])
        report.sections.append((LEAK_SECTION, leak_section(leaks)))
    elif examination is None:
        return None
    if not report.failed:
        data["failed"] = None
    elif reading is not None or leaks:
        _add_page(item, reading, leaks, data)
    report.memwatch = data  # type: ignore[attr-defined]
    return examination


def _is_leak_error(error: BaseException | None) -> bool:
    leaks = sys.modules.get("memwatch.leaks")
    return leaks is not None and isinstance(error, leaks.TensorLeakError)


def _add_page(
    item: pytest.Item, reading: Reading | None, leaks: Sequence[Leak], data: dict[str, Any]
) -> None:
    folder = item.config.stash[SETTINGS].html
    if folder is None:
        return
    from memwatch.errors import MemwatchError

    try:
        data["page"] = str(write_page(folder, item.nodeid, reading, leaks))
    except (MemwatchError, OSError) as error:
        data["page_error"] = str(error)


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
        if report.passed and examination.data.get("kept"):
            self._waiting.append(_Verdict(item, report, examination))
            return uncounted(report)
        if not report.failed or not examination.may_be_emptied:
            return report
        error = None if call.excinfo is None else call.excinfo.value
        if error is None or error is not examination.error:
            return report
        # its traceback keeps the values of the test's fixtures alive, and they keep the tensors alive
        error.__traceback__ = None
        if getattr(sys, "last_value", None) is error:
            sys.last_traceback = None
        self._waiting.append(_Verdict(item, report, examination))
        return uncounted(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Judge the earlier tests once a test was set up. A skipped test sets nothing up."""
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
        """Judge the tests that still wait, if the session was stopped."""
        self._judge()

    def _judge(self) -> None:
        waiting, self._waiting = self._waiting, []
        for item, report, examination in waiting:
            if report.failed and examination.is_emptied:
                _forget_leaks(report)
            _move_freed(report.memwatch, examination)
            with _as_current_item(item):
                item.ihook.pytest_runtest_logreport(report=report)


def _forget_leaks(report: pytest.TestReport) -> None:
    """Let a test pass whose leaked tensors are free by now, unless its peak is too high as well."""
    data: dict[str, Any] = report.memwatch
    too_high: str | None = data.get("above_limit")
    data.update(failed="peak" if too_high else None, leaks=[], emptied=data["leaks"])
    report.longrepr = too_high
    if not too_high:
        report.outcome = "passed"
    report.sections = [section for section in report.sections if section[0] != LEAK_SECTION]


def _move_freed(data: dict[str, Any], examination: Examination) -> None:
    """Move leaks from "kept" to "emptied" if their tensors are free by now, for example because a patch was undone."""
    kept = data.pop("kept", [])
    still = [leak for leak in kept if not examination.is_freed(leak["cause"])]
    freed = [leak for leak in kept if leak not in still]
    if still:
        data["kept"] = still
    if freed:
        data.setdefault("emptied", []).extend(freed)


@contextmanager
def _as_current_item(item: pytest.Item) -> Iterator[None]:
    """Let a worker of xdist send the report of an earlier test. It would give it the number of the running test."""
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
    """Return the plugin, or None if no report can wait, for example under a debugger."""
    is_due = config.getoption("usepdb", default=False)
    if hasattr(config, "workerinput"):
        is_due = is_due or _worker_of_xdist(config) is None
    return None if is_due or config.stash[SETTINGS].leaks != "all" else Postponed()
