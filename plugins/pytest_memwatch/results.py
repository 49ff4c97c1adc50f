"""The results of a session, collected from the reports of all workers, and their JSON file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest

from memwatch.output_files import write_whole
from pytest_memwatch.causes import causes_of

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_memwatch.causes import Freed, Results
    from pytest_memwatch.ignore import IgnoreRule


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
