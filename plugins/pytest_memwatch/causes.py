"""The causes behind the leaks and the avoidable memory of a session: many tests may show one, and one edit ends it."""

from __future__ import annotations

import copy
import functools
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from memwatch.kinds.leaks import LeakKind
from memwatch.sizes import format_bytes
from memwatch.words.leaks import ALL_FREED_SINCE, FREED_SINCE, LINE_NOT_SEEN, MADE_AT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pytest

Results = dict[str, dict[str, Any]]
"""Node id -> findings, outcome and duration of the test; plain data."""

Freed = dict[str, list[int]]
"""Cause -> how many of the tensors that single passes told were freed since, and how many were told."""
_TOLD: Final = ("kind", "holder", "reference", "site", "tensor", "advice", "path")
MOST_LINES: Final = 28
MOST_SHORT: Final = 8
"""Lines of the summary that causes may take: in full, and then in one line each."""
SHOWN_TESTS: Final = 3  # of each cause, in the short summary


def causes_of(results: Results, freed: Freed) -> list[dict[str, Any]]:
    """Return the causes for which tests failed, as plain data, the cause of the most tests first.

    Each cause has `cause` (its name, the same in every process), `tests` (their node ids), `nbytes` and `count` over
    all of them, and `ignore` (a rule that tolerates it). `kind`, `holder`, `reference`, `advice` and `path` come from
    its largest leak, `site` and `tensor` from the largest leak with a known line. `freed` of the `told` were freed
    since.
    """
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for node in results:
        if results[node]["failed"] == "leak":
            for leak in results[node].get("leaks", []):
                found.setdefault(leak["cause"], []).append((node, leak))
    causes = [_cause(name, leaks) for name, leaks in found.items()]
    for cause in causes:
        cause["freed"], cause["told"] = freed.get(cause["cause"], [0, 0])
    return sorted(causes, key=lambda cause: (-len(cause["tests"]), -cause["nbytes"], cause["cause"]))


def _cause(name: str, leaks: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    largest = max((leak for _, leak in leaks), key=lambda leak: (leak["nbytes"], leak["site"] is not None))
    seen = [leak for _, leak in leaks if leak["site"] is not None]
    made = max(seen, key=lambda leak: leak["nbytes"]) if largest["site"] is None and seen else largest
    return {
        "cause": name,
        "tests": list(dict.fromkeys(node for node, _ in leaks)),
        "nbytes": sum(leak["nbytes"] for _, leak in leaks),
        "count": sum(leak["count"] for _, leak in leaks),
        "ignore": f"{name}: known, {LeakKind(largest['kind']).held_by_short} {largest['holder']}",
        **{key: largest[key] for key in _TOLD},
        **{key: made[key] for key in ("site", "tensor")},
    }


def cause_lines(results: Results, freed: Freed, *, verbose: bool) -> list[str]:
    """Return the causes as lines of the summary, each once; the list is empty if no test leaked."""
    causes = causes_of(results, freed)
    if not causes:
        return []
    tests = len({node for cause in causes for node in cause["tests"]})
    lines = [f"Leaks: {counted_tests(tests)}, {_many(len(causes), 'cause')}"]
    for number, cause in enumerate(causes):
        told = ["", *_lines(cause, verbose=verbose)]
        if number and not verbose and len(lines) + len(told) > MOST_LINES:
            return lines + _in_short(causes[number:])
        lines += told
    return lines


def avoidable_lines(results: Results, *, verbose: bool) -> list[str]:
    """Return the causes of avoidable memory as lines of the summary, each once; none if no test failed for it."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for node, row in results.items():
        for finding in row.get("findings", []) if row["failed"] == "findings" else []:
            found.setdefault(finding["cause"], []).append((node, finding))
    if not found:
        return []
    failed = {node for rows in found.values() for node, _ in rows}
    lines = [f"Avoidable memory: {counted_tests(len(failed))}, {_many(len(found), 'cause')}"]
    order = sorted(found, key=lambda cause: -len(found[cause]))
    for cause in order if verbose else order[:MOST_SHORT]:
        tests = list(dict.fromkeys(node for node, _ in found[cause]))
        largest = max((finding for _, finding in found[cause]), key=lambda finding: finding["nbytes"])
        nbytes, holder = format_bytes(largest["nbytes"]), largest["holder"]
        lines += [
            "",
            f"{cause}  {counted_tests(len(tests))}, up to {nbytes}: {largest['kind']}: {holder}",
            f"  advice: {largest['advice']}",
            f"  to tolerate it, in the ini file: memwatch_ignore = {cause}: known, {holder}",
        ]
        if not verbose and len(tests) > SHOWN_TESTS:
            lines.append(
                f"  first tests: {', '.join(tests[:SHOWN_TESTS])} (all of them with -v or --memwatch-json)"
            )
    if not verbose and len(order) > MOST_SHORT:
        more = _many(len(order) - MOST_SHORT, "more cause")
        lines += ["", f"and {more} (all of them with -v or --memwatch-json)"]
    return lines


def _in_short(causes: list[dict[str, Any]]) -> list[str]:
    """Return one line for each of a few causes, and one line for the others."""
    more = len(causes) - MOST_SHORT
    lines = ["", *map(_headline, causes[:MOST_SHORT])]
    return (
        [*lines, f"and {_many(more, 'more cause')} (all of them with -v or --memwatch-json)"]
        if more > 0
        else lines
    )


def _lines(cause: Mapping[str, Any], *, verbose: bool) -> Iterator[str]:
    tests = cause["tests"]
    yield _headline(cause)
    yield MADE_AT.format(site=cause["site"] or LINE_NOT_SEEN, tensor=cause["tensor"])
    if cause["freed"]:
        words = ALL_FREED_SINCE if cause["freed"] == cause["told"] else FREED_SINCE
        yield words.format(freed=cause["freed"], told=cause["told"])
    yield f"  advice: {cause['advice']}"
    yield f"  to tolerate it, in the ini file: memwatch_ignore = {cause['ignore']}"
    if not verbose and len(tests) > SHOWN_TESTS:
        yield f"  first tests: {', '.join(tests[:SHOWN_TESTS])} (all of them with -v or --memwatch-json)"


def _headline(cause: Mapping[str, Any]) -> str:
    held = f"{LeakKind(cause['kind']).held_by_short} {cause['holder']}"
    return f"{cause['cause']}  {counted_tests(len(cause['tests']))}, {format_bytes(cause['nbytes'])}: {held}"


def counted_tests(count: int) -> str:
    """Return `1 test`, `2 tests`."""
    return _many(count, "test")


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s'[: count != 1]}"


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
