"""Output of the plugin in the terminal: status letters, and the summary at the end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from memwatch.output_files import write_whole
from memwatch.sizes import format_bytes
from memwatch.words.processes import counted
from pytest_memwatch.causes import MOST_SHORT, avoidable_lines, cause_lines, causes_of
from pytest_memwatch.verdict import top_lines

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_memwatch.causes import Freed, Results
    from pytest_memwatch.ignore import IgnoreRule
    from pytest_memwatch.options import Settings

RESULTS: Final = pytest.StashKey["Results"]()
FREED: Final = pytest.StashKey["Freed"]()
FORMAT: Final = "memwatch-pytest"
VERSION: Final = 1


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
    `reference`, `site`, `tensor`, `advice`, `path`, `ignore` (a rule that tolerates it), `told` (the tensors that
    single passes reported) and `freed` (how many of them were freed before the session ended).

    Each test has `nodeid`, `outcome`, `duration_s`, `failed` ("leak", "peak", "findings" or null); figures in bytes
    (`peak_bytes`, `baseline_bytes`, `peak_increase_bytes`, `limit_bytes`, `saved_bytes`); `top` (the lines that
    allocated most), `findings`, `ignored_findings`, `leaks`, `ignored`, `small` (below the least size), `kept` (by
    caches), `emptied` (freed by fixtures before the next test), `machinery` (cycles of tools), `allowed` and `page`.
    Keys of figures that were not measured are absent.
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
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(data, indent=1) + "\n", force=True)


Status = tuple[str, str, tuple[str, dict[str, bool]]]
_STATUS: Final[dict[str, Status]] = {
    "leak": ("failed", "L", ("LEAK", {"red": True})),
    "peak": ("failed", "P", ("PEAK", {"red": True})),
    "findings": ("failed", "A", ("AVOIDABLE", {"red": True})),
}


def status(report: pytest.CollectReport | pytest.TestReport) -> Status | None:
    """Return category, letter and word of a test that failed for its memory; it still counts as failed."""
    data: dict[str, Any] = getattr(report, "memwatch", None) or {}
    return _STATUS.get(data.get("failed") or "") if report.failed else None


def summary_lines(
    results: Results, settings: Settings, baseline: str | None, freed: Freed, *, verbose: bool = False
) -> list[str]:
    """Return the lines of the summary. The list is empty if there are no results to show."""
    parts = [
        _peaks(results, settings) if settings.measure else [],
        _comparison(results, baseline) if baseline is not None else [],
        _failures(results),
        cause_lines(results, freed, verbose=verbose),
        avoidable_lines(results, verbose=verbose),
        _small(results, settings),
        _noted(
            results,
            "kept",
            "Kept by caches and names: filled in one run, so not counted as leaks",
            verbose=verbose,
        ),
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
    lines: list[str] = []
    for part in parts:
        lines += [""] * bool(lines and part) + part
    return lines


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
        if row["own_profiles"]:  # only one profile can be open: ours pauses while the test's own is
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
    peaked = [node for node, row in results.items() if row["failed"] == "peak"]
    avoidable = [node for node, row in results.items() if row["failed"] == "findings"]
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
    shown = list(groups.values()) if verbose else list(groups.values())[:MOST_SHORT]
    for leaks in shown:
        total = format_bytes(sum(leak["nbytes"] for leak in leaks))
        lines.append(f"  {total:>12}  {leaks[0]['holder']}  ({len(leaks)} test{'s'[: len(leaks) != 1]})")
    if len(groups) > len(shown):
        lines.append(f"  and {len(groups) - len(shown)} more (all of them with -v or --memwatch-json)")
    return lines


def _small(results: Results, settings: Settings) -> list[str]:
    small = [leak for row in results.values() for leak in row.get("small", [])]
    if not small:
        return []
    total, least = (
        format_bytes(nbytes) for nbytes in (sum(leak["nbytes"] for leak in small), settings.leaks_min_bytes)
    )
    return [f"Not counted: {len(small)} leaks ({total}) of less than {least} each"]


def _machinery(results: Results) -> list[str]:
    cycles = [leak for row in results.values() for leak in row.get("machinery", [])]
    if not cycles:
        return []
    total = format_bytes(sum(leak["nbytes"] for leak in cycles))
    return [f"Not counted: {len(cycles)} cycles ({total}) closed by pytest, mock, an import or torch itself"]


def _ignored(results: Results, settings: Settings) -> list[str]:
    used: dict[tuple[str, str], int] = {(rule.pattern, rule.reason): 0 for rule in settings.ignore}
    for row in results.values():
        for leak in row.get("ignored", []):
            rule = leak["pattern"], leak["reason"]
            used[rule] = used.get(rule, 0) + 1
    if not used:
        return []
    return ["Ignore rules"] + [
        f"  {count:>4} leaks  {pattern}: {reason}" for (pattern, reason), count in used.items()
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
