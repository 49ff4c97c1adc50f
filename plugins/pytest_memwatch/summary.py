"""Write the output of the plugin in the terminal: status letters, and the summary at the end.

The summary shows the causes of the leaks and of the avoidable memory of a session. Many tests may have the same cause,
and one edit ends it for all of them.
"""

from __future__ import annotations

import copy
import functools
import json
from collections import Counter
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final

import pytest

from memwatch.kinds.leaks import LeakKind
from memwatch.sizes import format_bytes
from memwatch.text import visible
from memwatch.words.leaks import (
    ALL_FREED_SINCE,
    CHECK_FIXTURES,
    FREED_SINCE,
    HOOK_LINE,
    IN_FIXTURES,
    LINE_NOT_SEEN,
    MADE_AT,
    ONE_FREED_SINCE,
    UNKNOWN_LINE,
)
from memwatch.words.processes import counted
from pytest_memwatch.outputs import write_output
from pytest_memwatch.verdict import LEAK_SECTION, top_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_memwatch.ignore import IgnoreRule
    from pytest_memwatch.options import Settings

RESULTS: Final = pytest.StashKey["Results"]()
FREED: Final = pytest.StashKey["Freed"]()
NOT_WRITTEN: Final = pytest.StashKey[list[str]]()
"""For each file that the session could not write at its end, the reason in one line."""
FORMAT: Final = "memwatch-pytest"
VERSION: Final = 1  # of the format of the session as JSON
Status = tuple[str, str, tuple[str, dict[str, bool]]]
_STATUS: Final[dict[str, Status]] = {
    "leak": ("failed", "L", ("LEAK", {"red": True})),
    "peak": ("failed", "P", ("PEAK", {"red": True})),
    "findings": ("failed", "A", ("AVOIDABLE", {"red": True})),
}
Results = dict[str, dict[str, Any]]
"""Node id -> findings, outcome and duration of the test; plain data."""
Freed = dict[str, list[int]]
"""Cause -> how many of the tensors that single passes reported were freed since, and how many they reported."""
_SHOWN_KEYS: Final = ("kind", "holder", "reference", "site", "tensor", "hook", "advice", "path")
_LEAST_GROWING: Final = 3
"""If a container has more entries after each of so many tests of one process, it has grown. A guess: with two tests,
the first may fill the container, and the second may add its own entry."""
MOST_LINES: Final = 28
MOST_SHORT: Final = 8
"""Lines of the summary that causes may take: in full, and then in one line each. A guess."""
SHOWN_TESTS: Final = 3  # tests of each cause, in the short summary; a guess
MOST_FAILURE_LINES: Final = 36
MOST_SUMMARY_TESTS: Final = 10
"""Lines of failures, and of the short summary, that leaks may take. A guess."""
MOST_REPORT_LINES: Final = 120
_PYTEST_LINES: Final = 20
"""Lines that pytest itself prints around failures and summaries, counted in a session without warnings."""
MOST_NAMES: Final = 60
"""Names of tests in one line. A guess: in a suite with more failures somebody will use -v."""
Folded = tuple["list[pytest.TestReport]", str]
"""The reports to show, and a line about the other reports, which is empty if there are none."""


def collect(results: Results, report: pytest.TestReport) -> None:
    """Add the report of a test, if it was measured or checked, to the results."""
    data = getattr(report, "memwatch", None)
    if data is not None and report.when == "call":
        results[report.nodeid] = {"outcome": report.outcome, "duration_s": report.duration, **data}


def add_freed(freed: Freed, more: Freed) -> None:
    """Add the counts of freed tensors from one process to those of others."""
    for cause, counts in more.items():
        freed[cause] = [have + new for have, new in zip(freed.get(cause, [0, 0]), counts, strict=True)]


def write_json(path: Path, results: Results, ignore: tuple[IgnoreRule, ...], freed: Freed) -> None:
    """Write all results to one file.

    The file holds `format`, `version`, `memwatch` (its version), `ignore_rules` (pattern and reason each), `causes`
    and `tests`.

    A cause is a set of leaks that one edit would end. It has `cause`, `tests`, `nbytes`, `count`, `kind`, `holder`,
    `reference`, `site`, `tensor`, `hook`, `advice`, `path`, `ignore` (a rule that tolerates it), `told` (the tensors
    that single passes reported) and `freed` (how many of them were freed before the session ended).

    Each test has `nodeid`, `outcome`, `duration_s`, `failed` ("leak", "peak", "findings" or null); figures in bytes
    (`peak_bytes`, `baseline_bytes`, `peak_increase_bytes`, `limit_bytes`, `saved_bytes`); `above_limit` (a sentence,
    if the peak is above the limit or the baseline); `top` (the lines that allocated most), `findings`,
    `ignored_findings`, `leaks`, `ignored`, `small` (below the least size), `kept` (by caches, each with the number of
    `entries` of its container after the test, and with the id of the test's `process`), `emptied` (freed by fixtures
    before the next test), `in_fixtures` (tensors that only a fixture of a wider scope keeps: `holder` names it, and
    `entries` counts all living tensors that tests left in it), `machinery` (cycles of tools), `allowed` and `page`.
    Keys of figures that were not measured are absent.

    Raises:
        OutputError: the file cannot be written.
    """
    from memwatch._version import __version__

    data = {
        "format": FORMAT,
        "version": VERSION,
        "memwatch": __version__,
        "ignore_rules": [{"pattern": rule.pattern, "reason": rule.reason} for rule in ignore],
        "causes": causes_of(results, freed),
        "tests": [{"nodeid": node, **results[node]} for node in sorted(results)],
    }
    write_output(path, json.dumps(data, indent=1) + "\n", FORMAT)


def status(report: pytest.CollectReport | pytest.TestReport) -> Status | None:
    """Return category, letter and word of a test that failed for its memory; it still counts as failed."""
    data: dict[str, Any] = getattr(report, "memwatch", None) or {}
    return _STATUS.get(data.get("failed") or "") if report.failed else None


def summary_lines(
    results: Results,
    settings: Settings,
    baseline: str | None,
    freed: Freed,
    *,
    verbose: bool = False,
    failed: Sequence[pytest.TestReport] = (),
) -> list[str]:
    """Return the lines of the summary. The list is empty if there are no results to show.

    Args:
        results: the results of the tests.
        settings: the settings of the session.
        baseline: the name of the baseline, if there is one.
        freed: how many of the reported tensors were freed since.
        verbose: True to show everything.
        failed: the reports of failed tests; the lines that they leave unused show causes.
    """
    before = [
        _peaks(results, settings) if settings.measure else [],
        _comparison(results, baseline) if baseline is not None else [],
        _failures(results),
    ]
    after = [
        _avoidable_lines(results, is_first=not causes_of(results, freed), verbose=verbose),
        _small(results, settings),
        _noted(
            results,
            "kept",
            "Kept by caches and names, so not counted as leaks",
            verbose=verbose,
        ),
        _in_fixtures(results, verbose=verbose),
        _noted(
            results,
            "emptied",
            "Freed by fixtures before the next test, so not counted as leaks",
            verbose=verbose,
        ),
        _machinery(results),
        _ignored(results, settings),
        _allowed(results),
        _pages(results),
    ]
    unused = _unused_lines(failed, others=sum(len(part) + 1 for part in before + after if part))
    causes = _cause_lines(results, freed, unused, verbose=verbose)
    lines: list[str] = []
    for part in [*before, causes, *after]:
        lines += [""] * bool(lines and part) + part
    return lines


def not_written_lines(reasons: Sequence[str]) -> list[str]:
    """Return the lines about files that the session could not write."""
    return [f"Not written: {visible(reason)}" for reason in reasons]


def _peaks(results: Results, settings: Settings) -> list[str]:
    measured = {node: row for node, row in results.items() if "peak_increase_bytes" in row}
    order = sorted(measured, key=lambda node: -measured[node]["peak_increase_bytes"])
    shown = order[: settings.top] if settings.top else order
    title = f"Peak of the test bodies, largest first ({len(shown)} of {len(order)})"
    lines = [title if order else "No test was measured"]
    for node in shown:
        row = measured[node]
        entry = (
            f"{format_bytes(row['baseline_bytes'])} at its start, {counted(row['allocations'], 'allocation')}"
        )
        if row["own_profiles"]:  # only one profile can be open, so ours pauses while the test has its own
            entry += f", {row['own_profiles']} of the test's own profiles"
        lines += [
            "",
            f"{format_bytes(row['peak_increase_bytes'])}  {node}  ({row['device']}; {entry})",
            *top_lines(row["top"]),
        ]
    return lines


def _comparison(results: Results, baseline: str) -> list[str]:
    rows = {node: row for node, row in results.items() if "saved_bytes" in row}
    change = {node: row["peak_increase_bytes"] - row["saved_bytes"] for node, row in rows.items()}
    up, down = ([node for node in change if sign * change[node] > 0] for sign in (1, -1))
    same = len(change) - len(up) - len(down)
    new = sum("peak_increase_bytes" in row and "saved_bytes" not in row for row in results.values())
    lines = [
        f"Compared with baseline {baseline!r}: {len(up)} up, {len(down)} down, {same} equal, {new} not in it"
    ]
    for node in sorted([*up, *down], key=lambda node: -change[node]):
        before, after = rows[node]["saved_bytes"], rows[node]["peak_increase_bytes"]
        share = f"{100 * change[node] / before:+.1f} %" if before else "new bytes"
        lines.append(f"  {format_bytes(before):>12} -> {format_bytes(after):>12}  {share:>9}  {node}")
    return lines


def _failures(results: Results) -> list[str]:
    leaked = [node for node, row in results.items() if row["failed"] == "leak"]
    peaked = [node for node, row in results.items() if row["failed"] and "above_limit" in row]
    avoidable = [node for node, row in results.items() if row["failed"] and row.get("findings")]
    parts = [f"{counted(len(leaked), 'test')} with leaked tensors"] * bool(leaked)
    parts += [f"{counted(len(peaked), 'test')} above the limit of the peak"] * bool(peaked)
    parts += [f"{counted(len(avoidable), 'test')} with avoidable memory"] * bool(avoidable)
    return ["Failed for their memory: " + ", ".join(parts)] if parts else []


def _noted(results: Results, key: str, title: str, *, verbose: bool) -> list[str]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in results.values():
        for leak in row.get(key, []):
            groups.setdefault(leak["cause"], []).append(leak)
    lines = [f"{title} ({sum(map(len, groups.values()))})"] if groups else []
    # a cache that is filled once is not a leak, but a cache that goes on growing may be one
    ordered = sorted(groups.values(), key=lambda leaks: (not _grown(leaks), -len(leaks)))
    shown = ordered if verbose else ordered[:MOST_SHORT]
    for leaks in shown:
        total = sum(leak["nbytes"] for leak in leaks)
        tests = counted_tests(len(leaks))
        if grown := _grown(leaks):
            sizes = [leak["nbytes"] for leak in grown]
            mean = format_bytes(sum(sizes) // len(sizes)) + " on average" * (len(set(sizes)) > 1)
            count = "each" if len(grown) == len(leaks) else len(grown)
            tests = f"grew in {count} of {tests}, by {mean}"
        lines.append(f"  {format_bytes(total):>12}  {leaks[0]['holder']}  ({tests})")
    more = ordered[len(shown) :]
    if more:
        growing = sum(map(bool, map(_grown, more)))
        also = f", {growing} of them grew in each of several tests" if growing else ""
        lines.append(f"  and {len(more)} more{also} (all of them with -v or --memwatch-json)")
    return lines


def _in_fixtures(results: Results, *, verbose: bool) -> list[str]:
    """Return the lines about fixtures that keep tensors of several tests, and how to check such a test.

    A fixture that only the first test fills, or whose tensors each test replaces, is a cache or a data set.
    """
    rows = {node: row.get("in_fixtures", []) for node, row in results.items()}
    entries: dict[tuple[str, int], list[int]] = {}
    for kept in chain.from_iterable(rows.values()):
        entries.setdefault((kept["cause"], kept["process"]), []).append(kept["entries"])
    of_several = {
        cause
        for (cause, _), counts in entries.items()
        if any(after > before for before, after in pairwise(counts))
    }
    growing: Results = {
        node: {"in_fixtures": [each for each in kept if each["cause"] in of_several]}
        for node, kept in rows.items()
    }
    lines = _noted(growing, "in_fixtures", IN_FIXTURES, verbose=verbose)
    return [*lines, CHECK_FIXTURES] if lines else []


def _grown(leaks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the leaks into a container that grows: in each process, it has more entries after every next test.

    Each process of xdist has a container of its own. Processes with less than three tests are left out, because there
    the container may just be filled for the first time.
    """
    by_process: dict[int | None, list[Mapping[str, Any]]] = {}
    for leak in leaks:
        by_process.setdefault(leak.get("process"), []).append(leak)
    for in_process in by_process.values():
        entries = [leak.get("entries") or 0 for leak in in_process]
        if any(before >= after for before, after in pairwise(entries)):
            return []
    grown = (each for each in by_process.values() if len(each) >= _LEAST_GROWING)
    return list(chain.from_iterable(grown))


def _small(results: Results, settings: Settings) -> list[str]:
    small = [leak for row in results.values() for leak in row.get("small", [])]
    if not small:
        return []
    total, least = (
        format_bytes(nbytes) for nbytes in (sum(leak["nbytes"] for leak in small), settings.leaks_min_bytes)
    )
    return [f"Not counted: {counted(len(small), 'leak')} ({total}) of less than {least} each"]


def _machinery(results: Results) -> list[str]:
    cycles = [leak for row in results.values() for leak in row.get("machinery", [])]
    if not cycles:
        return []
    total = format_bytes(sum(leak["nbytes"] for leak in cycles))
    return [
        f"Not counted: {counted(len(cycles), 'cycle')} ({total}) closed by pytest, mock, an import or torch itself"
    ]


def _ignored(results: Results, settings: Settings) -> list[str]:
    used: dict[tuple[str, str], int] = {(rule.pattern, rule.reason): 0 for rule in settings.ignore}
    for row in results.values():
        for leak in row.get("ignored", []):
            rule = leak["pattern"], leak["reason"]
            used[rule] = used.get(rule, 0) + 1
    if not used:
        return []
    return ["Ignore rules"] + [
        f"  {counted(count, 'leak'):>10}  {pattern}: {reason}" for (pattern, reason), count in used.items()
    ]


def _allowed(results: Results) -> list[str]:
    allowed = [f"  {node}: {row['allowed']}" for node, row in results.items() if "allowed" in row]
    return ["Allowed to leak", *allowed] if allowed else []


def _pages(results: Results) -> list[str]:
    pages = [f"  {row['page']}" for row in results.values() if row.get("page")]
    faults = [
        f"  {node}: no page, {row['page_error']}" for node, row in results.items() if row.get("page_error")
    ]
    return ["Pages of failing tests", *pages, *faults] if pages or faults else []


def causes_of(results: Results, freed: Freed) -> list[dict[str, Any]]:
    """Return the causes for which tests failed, as plain data, the cause of the most tests first.

    Each cause has `cause` (its name, the same in every process), `tests` (their node ids), `nbytes` and `count` over
    all of them, and `ignore` (a rule that tolerates it). `kind`, `holder`, `reference`, `hook`, `advice` and `path`
    come from its largest leak, `site` and `tensor` from the largest leak with a known line. `freed` of the `told` were
    freed since.
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
        **{key: largest[key] for key in _SHOWN_KEYS},
        **{key: made[key] for key in ("site", "tensor")},
    }


def _unused_lines(failed: Sequence[pytest.TestReport], others: int) -> int:
    """Return how many lines of the report are left for the causes, after failures, short summary and other sections."""
    leaks = [report for report in failed if _causes_alone(report)]
    failures = sum(1 + _lines_of(report) for report in _one_failure_per_cause(leaks)[0])
    short = len(_tests_of_each_cause(leaks)[0])
    used = _PYTEST_LINES + failures + short + others + MOST_LINES + MOST_SHORT
    return max(0, MOST_REPORT_LINES - used)


def _cause_lines(results: Results, freed: Freed, unused: int, *, verbose: bool) -> list[str]:
    """Return the causes as lines of the summary, each once; the list is empty if no test leaked."""
    causes = causes_of(results, freed)
    if not causes:
        return []
    tests = len({node for cause in causes for node in cause["tests"]})
    lines = [f"Leaks: {counted_tests(tests)}, {_many(len(causes), 'cause')}"]
    for number, cause in enumerate(causes):
        is_marked = all(results[node].get("check") == "growth" for node in cause["tests"])
        of_cause = [
            "",
            *_lines_of_cause(cause, is_first=not number, is_marked=is_marked, verbose=verbose),
        ]
        if number and not verbose and len(lines) + len(of_cause) > MOST_LINES:
            return lines + _in_short(causes[number:], MOST_SHORT + unused)
        lines += of_cause
    return lines


def _avoidable_lines(results: Results, *, is_first: bool, verbose: bool) -> list[str]:
    """Return the causes of avoidable memory as lines of the summary, each once, for the failed tests.

    A test that failed for leaks counts too, because its report also has the section about avoidable memory.

    Args:
        results: the results of the tests.
        is_first: whether these lines have the first rule of the summary.
        verbose: True to show everything.
    """
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for node, row in results.items():
        for finding in row.get("findings", []) if row["failed"] else []:
            found.setdefault(finding["cause"], []).append((node, finding))
    if not found:
        return []
    failed = {node for rows in found.values() for node, _ in rows}
    lines = [f"Avoidable memory: {counted_tests(len(failed))}, {_many(len(found), 'cause')}"]
    order = sorted(found, key=lambda cause: -len(found[cause]))
    for cause in order if verbose else order[:MOST_SHORT]:
        tests = list(dict.fromkeys(node for node, _ in found[cause]))
        largest = max((finding for _, finding in found[cause]), key=lambda finding: finding["nbytes"])
        nbytes, place = format_bytes(largest["nbytes"]), largest["place"]
        lines += [
            "",
            f"{cause}  {counted_tests(len(tests))}, up to {nbytes}: {largest['kind']}: {place}",
            f"  advice: {largest['advice']}",
            _rule_line(f"{cause}: known, {place}", is_first=is_first and cause == order[0]),
        ]
        if not verbose and len(tests) > SHOWN_TESTS:
            lines.append(
                f"  first tests: {', '.join(tests[:SHOWN_TESTS])} (all of them with -v or --memwatch-json)"
            )
    if not verbose and len(order) > MOST_SHORT:
        more = _many(len(order) - MOST_SHORT, "more cause")
        lines += ["", f"and {more} (all of them with -v or --memwatch-json)"]
    return lines


def _in_short(causes: list[dict[str, Any]], most: int) -> list[str]:
    """Return one line for each of the first causes, and one line for the others."""
    most += len(causes) == most + 1  # a line that counts one more cause would be as long as that cause
    more = len(causes) - most
    lines = ["", *map(_headline, causes[:most])]
    return (
        [*lines, f"and {_many(more, 'more cause')} (all of them with -v or --memwatch-json)"]
        if more > 0
        else lines
    )


def _lines_of_cause(
    cause: Mapping[str, Any], *, is_first: bool, is_marked: bool, verbose: bool
) -> Iterator[str]:
    tests = cause["tests"]
    yield _headline(cause)
    if cause["kind"] != LeakKind.HOOKS:
        unknown = UNKNOWN_LINE if is_marked else LINE_NOT_SEEN
        yield MADE_AT.format(site=cause["site"] or unknown, tensor=cause["tensor"])
    if cause["hook"]:
        yield HOOK_LINE.format(hook=cause["hook"])
    if cause["freed"]:
        words = ALL_FREED_SINCE if cause["freed"] == cause["told"] else FREED_SINCE
        words = ONE_FREED_SINCE if cause["told"] == 1 else words
        yield words.format(freed=cause["freed"], told=cause["told"])
    yield f"  advice: {cause['advice']}"
    yield _rule_line(cause["ignore"], is_first=is_first)
    if not verbose and len(tests) > SHOWN_TESTS:
        yield f"  first tests: {', '.join(tests[:SHOWN_TESTS])} (all of them with -v or --memwatch-json)"


def _rule_line(rule: str, *, is_first: bool) -> str:
    """Return a line that says how to write a rule. An ini file has further rules on indented lines below the key."""
    where = (
        "in the ini file: memwatch_ignore = " if is_first else "on an indented line below memwatch_ignore: "
    )
    return f"  to tolerate it, {where}{rule}"


def _headline(cause: Mapping[str, Any]) -> str:
    held = f"{LeakKind(cause['kind']).held_by_short} {cause['holder']}"
    return f"{cause['cause']}  {counted_tests(len(cause['tests']))}, {format_bytes(cause['nbytes'])}: {held}"


def counted_tests(count: int) -> str:
    """Return `1 test`, `2 tests`."""
    return _many(count, "test")


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s'[: count != 1]}"


def fold_failures(reporter: Any) -> None:
    """Leave out causes that other tests have shown, in the terminal's failures and its short summary.

    Only the output of these two changes. The tests still count as failed, and other plugins see all of them.

    Args:
        reporter: pytest's terminal reporter.
    """
    for name, fold in (
        ("summary_failures", _one_failure_per_cause),
        ("short_test_summary", _tests_of_each_cause),
    ):
        setattr(reporter, name, _folded(reporter, getattr(reporter, name), fold))


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


def _one_failure_per_cause(reports: list[pytest.TestReport]) -> Folded:
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
            kept.append(_with_count(report, report.memwatch["findings"][0]["cause"], counts))
            lines += 1 + _lines_of(kept[-1])
            continue
        kept.append(_with_new_leaks(report, shown, counts, MOST_FAILURE_LINES - lines))
        shown.update((cause, report.nodeid) for cause in causes if cause not in shown)
        lines += 1 + _lines_of(kept[-1])
    what = f"and {counted_tests(left_out)} with other causes, which the section memwatch lists; -v shows each test"
    return kept, what if left_out else ""


def _with_count(report: pytest.TestReport, first: str, counts: Counter[str]) -> pytest.TestReport:
    """Return a copy of a report. It has the number of tests with the first cause after that cause."""
    copied = copy.copy(report)
    if counts[first] > 1:
        copied.longrepr = str(report.longrepr).replace(
            f"({first})", f"({first}, {counted_tests(counts[first])})"
        )
    return copied


def _with_new_leaks(
    report: pytest.TestReport, shown: dict[str, str], counts: Counter[str], most_lines: int
) -> pytest.TestReport:
    """Return a copy of a report for the terminal. It only has the leaks that no earlier test has shown."""
    leaks = report.memwatch["leaks"]
    first = leaks[0]["cause"]
    copied = _with_count(report, first, counts)
    if first in shown:
        copied.longrepr = (
            f"Test leaked the same as {shown[first]} ({first}, {counted_tests(counts[first])}), and more"
        )
    sections = []
    for title, content in report.sections:
        texts = content.split("\n\n") if title == LEAK_SECTION else []
        if len(texts) >= len(leaks):  # each leak is one paragraph, a hint may follow
            texts = _first(_new_texts(texts, leaks, shown), most_lines)
        sections.append((title, "\n\n".join(texts) if texts else content))
    copied.sections = sections
    return copied


def _new_texts(texts: Sequence[str], leaks: Sequence[dict[str, Any]], shown: dict[str, str]) -> list[str]:
    new = [text for text, leak in zip(texts, leaks, strict=False) if leak["cause"] not in shown]
    return new + list(texts[len(leaks) :])


def _first(texts: list[str], most_lines: int) -> list[str]:
    """Return the first texts that fit, at least one, and a line about the others."""
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


def _tests_of_each_cause(reports: list[pytest.TestReport]) -> Folded:
    """List a few tests of each cause, and few tests in all. One line has the names of the others."""
    kept: list[pytest.TestReport] = []
    count = 0
    others: list[pytest.TestReport] = []
    chosen = one_for_each_cause(reports, SHOWN_TESTS)
    for report in chosen:
        is_leak = bool(_causes_alone(report))
        if is_leak and count >= MOST_SUMMARY_TESTS:
            others.append(report)
            continue
        count += is_leak
        kept.append(report)
    listed = set(map(id, chosen))
    same = [report for report in reports if id(report) not in listed]
    lines = [
        f"and {counted_tests(len(left_out))} with {which} causes (-v shows each): {_names(left_out)}"
        for which, left_out in (("other", others), ("the same", same))
        if left_out
    ]
    return kept, "\n".join(lines)


def _names(reports: Sequence[pytest.TestReport]) -> str:
    """Return the names of tests, up to a number that a line can have."""
    names = [report.nodeid for report in reports[:MOST_NAMES]]
    more = len(reports) - len(names)
    return ", ".join([*names, *[f"{more} more"] * (more > 0)])


def tests_by_cause(reports: list[pytest.TestReport]) -> Counter[str]:
    """Return how many of some reports have each cause."""
    return Counter(cause for report in reports for cause in _causes(getattr(report, "memwatch", None) or {}))


def _causes(data: dict[str, Any]) -> set[str]:
    """Return the causes for which a test failed, those of its leaks or of its avoidable memory."""
    rows = data.get("findings" if data.get("failed") == "findings" else "leaks", [])
    return {row["cause"] for row in rows}


def one_for_each_cause(reports: list[pytest.TestReport], most: int = 1) -> list[pytest.TestReport]:
    """Leave out the tests that failed only for memory and whose causes other tests have shown.

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
    is_alone = data.get("failed") in ("leak", "findings") and "above_limit" not in data
    return _causes(data) if is_alone and isinstance(report.longrepr, str) else set()
