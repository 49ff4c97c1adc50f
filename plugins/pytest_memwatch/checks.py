"""The checks of one test, decided from its markers, its fixtures and the options before its body runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from pytest_memwatch.markers import (
    Allowance,
    FindingsCheck,
    GrowthCheck,
    PeakLimit,
    findings_check,
    has_peak_mark,
    leak_mark,
    peak_limit,
)

if TYPE_CHECKING:
    from pytest_memwatch.options import Settings

FIXTURE_ASKED: Final = pytest.StashKey[bool]()
"""Set on a test by the fixture `no_tensor_leaks`."""


@dataclass(frozen=True)
class Checks:
    """The checks of one test.

    Attributes:
        growth: run the body several times and report tensors that each further run adds.
        single_pass: run the body once and report tensors that it leaves behind.
        allowed: the marker that allows the test to leak.
        limit: the largest peak that the body may add.
        findings: the avoidable memory that fails the test.
        measured: whether to measure the peak for the report.
        asked: whether the test itself asks for a check of its peak.
    """

    growth: GrowthCheck | None = None
    single_pass: bool = False
    allowed: Allowance | None = None
    limit: PeakLimit | None = None
    findings: FindingsCheck | None = None
    measured: bool = False
    asked: bool = False

    @property
    def profiled(self) -> bool:
        """Whether the body runs under `memwatch.profile()`."""
        return self.measured or self.limit is not None or self.findings is not None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.growth or self.single_pass or self.profiled or self.allowed)


def checks_for(item: pytest.Item, settings: Settings) -> Checks:
    """Return the checks of a test whose fixtures are set up already."""
    if not settings.enabled:
        return Checks()
    mark = leak_mark(item) if settings.leaks != "off" else None
    allowed = mark if isinstance(mark, Allowance) else None
    growth = mark if isinstance(mark, GrowthCheck) else None
    if mark is None and settings.leaks != "off" and item.stash.get(FIXTURE_ASKED, False):
        growth = GrowthCheck()
    return Checks(
        growth=growth,
        single_pass=settings.leaks == "all" and mark is None and growth is None,
        allowed=allowed,
        limit=peak_limit(item, settings),
        findings=findings_check(item, settings.findings),
        measured=settings.measure,
        asked=has_peak_mark(item),
    )
