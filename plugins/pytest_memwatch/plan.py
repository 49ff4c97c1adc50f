"""What is to be done for one test: decided from its markers, its fixtures and the options, before it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from pytest_memwatch.markers import Allowance, GrowthCheck, PeakLimit, leak_mark, peak_limit

if TYPE_CHECKING:
    from pytest_memwatch.options import Settings

FIXTURE_ASKED: Final = pytest.StashKey[bool]()
"""Set on a test by the fixture `no_tensor_leaks`."""


@dataclass(frozen=True)
class Plan:
    """What to do with one test.

    Attributes:
        growth: run the body several times and report what each run adds.
        single_pass: run it once and report what it left behind.
        allowed: the marker that lets the test leak.
        limit: the most its body may add at its peak.
        measured: measure the peak for the report.
    """

    growth: GrowthCheck | None = None
    single_pass: bool = False
    allowed: Allowance | None = None
    limit: PeakLimit | None = None
    measured: bool = False

    @property
    def profiled(self) -> bool:
        """Whether the body runs under `memwatch.profile()`."""
        return self.measured or self.limit is not None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.growth or self.single_pass or self.profiled or self.allowed)


def plan_for(item: pytest.Item, settings: Settings) -> Plan:
    """Decide what to do with a test; its fixtures are set up already."""
    if not settings.enabled:
        return Plan()
    mark = leak_mark(item) if settings.leaks != "off" else None
    allowed = mark if isinstance(mark, Allowance) else None
    growth = mark if isinstance(mark, GrowthCheck) else None
    if mark is None and settings.leaks != "off" and item.stash.get(FIXTURE_ASKED, False):
        growth = GrowthCheck()
    return Plan(
        growth=growth,
        single_pass=settings.leaks == "all" and mark is None and growth is None,
        allowed=allowed,
        limit=peak_limit(item, settings),
        measured=settings.measure,
    )
