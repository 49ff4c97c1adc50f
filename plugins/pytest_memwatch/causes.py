"""The causes behind the leaks and the avoidable memory of a session: many tests may show one, and one edit ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from memwatch.kinds.leaks import LeakKind
from memwatch.sizes import format_bytes
from memwatch.words.leaks import ALL_FREED_SINCE, FREED_SINCE, LINE_NOT_SEEN, MADE_AT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
