"""The hooks of the plugin; the other files do their work.

pytest imports this file in every session, so it imports neither torch nor memwatch's recorder.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from memwatch.errors import MemwatchError
from pytest_memwatch.examine import examined, examined_doctest, is_doctest, is_unittest
from pytest_memwatch.fixtures import FORMAT as BASELINE_FORMAT
from pytest_memwatch.fixtures import (
    Baseline,
    baseline_path,
    load_baseline,
    memwatch_fixture,
    no_tensor_leaks,
    save_baseline,
)
from pytest_memwatch.options import (
    SETTINGS,
    LimitError,
    add_options,
    check_marks,
    checks_for,
    read_settings,
    register,
)
from pytest_memwatch.outcome import (
    EXAMINATION,
    Postponed,
    attach,
    postponed_for,
    running_examination,
    uncounted,
)
from pytest_memwatch.outputs import Output, check_before_tests
from pytest_memwatch.summary import FORMAT as RESULTS_FORMAT
from pytest_memwatch.summary import (
    FREED,
    NOT_WRITTEN,
    RESULTS,
    Status,
    add_freed,
    collect,
    fold_failures,
    not_written_lines,
    status,
    summary_lines,
    write_json,
)

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from pytest_memwatch.options import Settings

__all__ = ["memwatch_fixture", "no_tensor_leaks"]

POSTPONED: Final = pytest.StashKey[Postponed | None]()
BASELINE: Final = pytest.StashKey[Baseline | None]()
_FREED_KEY: Final = "memwatch_freed"
"""The key under which a worker of xdist sends its counts of reported and freed tensors."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare options and ini keys."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Declare markers; read the settings and the baseline."""
    register(config)
    settings = read_settings(config)
    config.stash[SETTINGS] = settings
    config.stash[RESULTS] = {}
    config.stash[FREED] = {}
    config.stash[NOT_WRITTEN] = []
    if not _is_worker(config):
        check_before_tests(_outputs(config.rootpath, settings))
    compare = settings.compare
    config.stash[BASELINE] = None if compare is None else load_baseline(config.rootpath, compare)
    config.pluginmanager.register(_Collector(config), "memwatch-collector")
    config.stash[POSTPONED] = postponed = postponed_for(config)
    if postponed is not None:
        config.pluginmanager.register(postponed, "memwatch-postponed")


def _outputs(root: Path, settings: Settings) -> list[Output]:
    """Return the files that the session writes at its end."""
    outputs = []
    if settings.json is not None:
        outputs.append(Output("--memwatch-json", settings.json, RESULTS_FORMAT))
    if settings.save is not None:
        option = f"--memwatch-save={settings.save}"
        outputs.append(Output(option, baseline_path(root, settings.save), BASELINE_FORMAT))
    return outputs


def pytest_sessionstart(session: pytest.Session) -> None:
    """Change how the terminal shows failures, once it is there."""
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None:
        fold_failures(reporter)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Stop the run before any test if a marker is wrong."""
    if not _is_worker(config):
        check_marks(items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail each test with a wrong marker in a worker of xdist, where a usage error would crash the worker."""
    if _is_worker(item.config):
        try:
            check_marks([item])
        except pytest.UsageError as error:
            pytest.fail(str(error), pytrace=False)


def _examining(item: pytest.Item) -> AbstractContextManager[None]:
    """Return a context in which the body of the test is examined, if it has a check."""
    __tracebackhide__ = True
    settings = item.config.stash[SETTINGS]
    checks = checks_for(item, settings)
    if is_doctest(item):
        checks = replace(checks, growth=None, single_pass=checks.single_pass or checks.growth is not None)
    if checks.idle or not (isinstance(item, pytest.Function) or is_doctest(item)):
        return nullcontext()
    from pytest_memwatch.examine import Examination, lasting_fixtures

    baseline = item.config.stash[BASELINE]
    saved_bytes = baseline.peaks.get(item.nodeid) if baseline else None
    if checks.limit is not None:
        params = getattr(getattr(item, "callspec", None), "params", {})
        try:
            limit = checks.limit.for_test({**params, **getattr(item, "funcargs", {})})
        except LimitError as error:
            __tracebackhide__ = False  # pytest adds a remark if all calls are hidden
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        checks = replace(checks, limit=limit)
    examination = Examination(checks, settings, saved_bytes, lambda: lasting_fixtures(item))
    item.stash[EXAMINATION] = examination
    if not isinstance(item, pytest.Function):
        return examined_doctest(item, examination)
    return examined(item, examination)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Examine the body of a test function, fixtures excluded."""
    __tracebackhide__ = True
    with _examining(pyfuncitem):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Examine the body of a unittest method or a doctest, which pytest_pyfunc_call does not see."""
    __tracebackhide__ = True
    with _examining(item) if is_unittest(item) or is_doctest(item) else nullcontext():
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the findings to the report. Hold it back if fixtures may still free the tensors that the test left."""
    subtest_of = running_examination(item) if call.when == "call" else None
    if subtest_of is not None and call.excinfo is not None:
        subtest_of.explain(call.excinfo.value)
    report = yield
    if call.when != "call":
        return report
    if subtest_of is not None and subtest_of.repeats_subtest(failed=report.failed):
        return uncounted(report)
    examination = attach(item, call, report)
    postponed = item.config.stash[POSTPONED]
    if postponed is None or examination is None:
        return report
    return postponed.hold(item, call, report, examination)


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.CollectReport | pytest.TestReport) -> Status | None:
    """Show the letters L (leak), P (peak) and A (avoidable memory)."""
    return status(report)


class _Collector:
    """Collects the reports of this process or, with xdist, of all workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._results = config.stash[RESULTS]
        self._freed = config.stash[FREED]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the counts of freed tensors from a worker of xdist that has ended."""
        add_freed(self._freed, getattr(node, "workeroutput", {}).get(_FREED_KEY, {}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        collect(self._results, report)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the JSON file and the baseline, once per run."""
    examine = sys.modules.get("pytest_memwatch.examine")
    freed = {} if examine is None else examine.end_checks()
    config = session.config
    settings, results = config.stash[SETTINGS], config.stash[RESULTS]
    if _is_worker(config):
        config.workeroutput[_FREED_KEY] = freed  # type: ignore[attr-defined]
    add_freed(config.stash[FREED], freed)
    if _is_worker(config) or config.option.collectonly:
        return
    # after an error in this hook, pytest would not print the report of the session
    if settings.json is not None:
        try:
            write_json(settings.json, results, settings.ignore, config.stash[FREED])
        except MemwatchError as error:
            config.stash[NOT_WRITTEN].append(str(error))
    if settings.save is not None:
        try:
            save_baseline(config.rootpath, settings.save, results)
        except MemwatchError as error:
            config.stash[NOT_WRITTEN].append(str(error))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the summary of the session."""
    baseline = config.stash[BASELINE]
    verbose = terminalreporter.verbosity > 0
    lines = summary_lines(
        config.stash[RESULTS],
        config.stash[SETTINGS],
        baseline.name if baseline else None,
        config.stash[FREED],
        verbose=verbose,
        failed=terminalreporter.stats.get("failed", []),
    )
    reasons = config.stash[NOT_WRITTEN]
    lines += [""] * bool(lines and reasons) + not_written_lines(reasons)
    if lines:
        terminalreporter.section("memwatch")
        terminalreporter.write("\n".join([*lines, ""]))
