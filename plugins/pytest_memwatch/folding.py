"""One failure for each cause: a leak in forty tests is described in full once. The report has 120 lines at most."""

from __future__ import annotations

import copy
import functools
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from pytest_memwatch.causes import SHOWN_TESTS, counted_tests

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

LEAK_SECTION: Final = "memwatch leaked tensors"
"""The title of the section of a report that has the leaks."""
MOST_FAILURE_LINES: Final = 36
MOST_SUMMARY_TESTS: Final = 10
"""Lines of failures, and of the short summary, that leaks may take. With those of the causes they make up 120 lines."""


def fold_failures(reporter: Any) -> None:
    """Have the terminal's failures and its short summary leave out what other tests have shown.

    Only what these two print changes. The tests still count as failed, and other plugins see all of them.

    Args:
        reporter: pytest's terminal reporter.
    """
    for name, fold in (("summary_failures", _failures), ("short_test_summary", _tests)):
        setattr(reporter, name, _folded(reporter, getattr(reporter, name), fold))


Folded = tuple["list[pytest.TestReport]", str]
"""The reports to show, and a line about those that are left out; empty if none is."""


def _folded(
    reporter: Any, show: Callable[[], None], fold: Callable[[list[pytest.TestReport]], Folded]
) -> Callable[[], None]:
    @functools.wraps(show)
    def showing() -> None:
        failed = reporter.stats.get("failed")
        if not failed or reporter.verbosity > 0:
            show()
            return
        reporter.stats["failed"], left_out = fold(failed)
        try:
            show()
        finally:
            reporter.stats["failed"] = failed
        if left_out:
            reporter.write_line(left_out)

    return showing


def _failures(reports: list[pytest.TestReport]) -> Folded:
    """Show each cause in the first test that has it, as far as the lines suffice."""
    counts = tests_by_cause(reports)
    shown: dict[str, str] = {}
    kept, lines, left_out = [], 0, 0
    for report in one_for_each_cause(reports):
        causes = _causes_alone(report)
        if causes and lines >= MOST_FAILURE_LINES:
            left_out += 1
            continue
        if not causes:
            kept.append(report)
            continue
        if report.memwatch["failed"] == "findings":  # its section is short: a paragraph for each finding
            kept.append(_with_count(report, counts))
            lines += 1 + _lines_of(kept[-1])
            continue
        kept.append(_with_new_leaks(report, shown, counts, MOST_FAILURE_LINES - lines))
        shown.update((cause, report.nodeid) for cause in causes if cause not in shown)
        lines += 1 + _lines_of(kept[-1])
    what = f"and {counted_tests(left_out)} with other causes, which the section memwatch lists; -v shows each test"
    return kept, what if left_out else ""


def _with_count(report: pytest.TestReport, counts: Counter[str]) -> pytest.TestReport:
    """Return a report of avoidable memory with how many tests have the cause that its sentence names."""
    first = report.memwatch["findings"][0]["cause"]
    told = copy.copy(report)
    if counts[first] > 1:
        told.longrepr = str(report.longrepr).replace(
            f"({first})", f"({first}, {counted_tests(counts[first])})"
        )
    return told


def _with_new_leaks(
    report: pytest.TestReport, shown: dict[str, str], counts: Counter[str], most_lines: int
) -> pytest.TestReport:
    """Return a report as it is to be printed: with the leaks that no test before it has."""
    leaks = report.memwatch["leaks"]
    first = leaks[0]["cause"]
    told = copy.copy(report)
    if counts[first] > 1:
        told.longrepr = str(report.longrepr).replace(
            f"({first})", f"({first}, {counted_tests(counts[first])})"
        )
    if first in shown:
        told.longrepr = (
            f"Test leaked the same as {shown[first]} ({first}, {counted_tests(counts[first])}), and more"
        )
    sections = []
    for title, content in report.sections:
        texts = content.split("\n\n") if title == LEAK_SECTION else []
        if len(texts) >= len(leaks):  # each leak is one paragraph, a hint may follow
            texts = _first(_new_texts(texts, leaks, shown), most_lines)
        sections.append((title, "\n\n".join(texts) if texts else content))
    told.sections = sections
    return told


def _new_texts(texts: Sequence[str], leaks: Sequence[dict[str, Any]], shown: dict[str, str]) -> list[str]:
    new = [text for text, leak in zip(texts, leaks, strict=False) if leak["cause"] not in shown]
    return new + list(texts[len(leaks) :])


def _first(texts: list[str], most_lines: int) -> list[str]:
    """Return the first texts, one at least, that fit, and a line about the others."""
    kept: list[str] = []
    lines = 0
    for text in texts:
        lines += 1 + text.count("\n") + 1
        if kept and lines > most_lines:
            return [
                *kept,
                f"and {len(texts) - len(kept)} more, which the section memwatch lists; -v shows each",
            ]
        kept.append(text)
    return kept


def _lines_of(report: pytest.TestReport) -> int:
    return str(report.longrepr).count("\n") + 1 + sum(2 + text.count("\n") for _, text in report.sections)


def _tests(reports: list[pytest.TestReport]) -> Folded:
    """List a few tests of each cause, and not many in all."""
    kept: list[pytest.TestReport] = []
    count, left_out = 0, 0
    chosen = one_for_each_cause(reports, SHOWN_TESTS)
    for report in chosen:
        is_leak = bool(_causes_alone(report))
        if is_leak and count >= MOST_SUMMARY_TESTS:
            left_out += 1
            continue
        count += is_leak
        kept.append(report)
    return kept, f"and {counted_tests(left_out)} with other causes; -v shows each" if left_out else ""


def tests_by_cause(reports: list[pytest.TestReport]) -> Counter[str]:
    """Return how many of some reports have each cause."""
    return Counter(cause for report in reports for cause in _causes(getattr(report, "memwatch", None) or {}))


def _causes(data: dict[str, Any]) -> set[str]:
    """Return the causes for which a test failed, those of its leaks or of its avoidable memory."""
    rows = data.get("findings" if data.get("failed") == "findings" else "leaks", [])
    return {row["cause"] for row in rows}


def one_for_each_cause(reports: list[pytest.TestReport], most: int = 1) -> list[pytest.TestReport]:
    """Leave out the tests that failed for nothing but memory whose causes other tests have shown.

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
    """Return the causes of a failure that shows nothing else: neither a traceback nor a peak."""
    data = getattr(report, "memwatch", None) or {}
    only_memory = data.get("failed") in ("leak", "findings") and isinstance(report.longrepr, str)
    return _causes(data) if only_memory else set()
