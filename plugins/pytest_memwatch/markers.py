"""The markers, and the checks of one test that they, its fixtures and the options decide before its body runs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from memwatch.errors import MemwatchError
from memwatch.sizes import parse_bytes
from pytest_memwatch.ignore import IgnoreRule, parse_rules

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_memwatch.options import Settings

_DEVICE: Final = re.compile(r"[a-z_]+(:[0-9]+)?")


@dataclass(frozen=True)
class GrowthCheck:
    """Check by growth: the body runs several times, and tensors that each further run adds are a leak.

    Where `warmup` or `runs` is None, the options decide.
    """

    warmup: int | None = None
    runs: int | None = None
    ignore: tuple[IgnoreRule, ...] = ()
    max_bytes: int = 0


@dataclass(frozen=True)
class PeakLimit:
    """The most bytes that the body may add at its peak, or a function of the test's arguments that returns them."""

    limit: int | Callable[..., Any]
    device: str | None = None

    def nbytes(self, arguments: dict[str, Any]) -> int:
        """Return the limit in bytes for a test with these arguments."""
        if not callable(self.limit):
            return self.limit
        names = inspect.signature(self.limit).parameters
        return parse_bytes(self.limit(**{name: arguments[name] for name in names}))


@dataclass(frozen=True)
class FindingsCheck:
    """Check for avoidable memory: findings of these kinds, of `min_bytes` or more, fail the test.

    Where `kinds` is None, all kinds count.
    """

    min_bytes: int = 0
    kinds: frozenset[str] | None = None


@dataclass(frozen=True)
class Allowance:
    """The test may leak."""

    reason: str


def no_tensor_leaks(
    warmup: int | None = None,
    runs: int | str | None = None,
    ignore: object = (),
    max_bytes: int | str = 0,
) -> GrowthCheck:
    """Fail the test if each further run of its body leaves tensors behind.

    The body runs `warmup` (1) plus `runs` times with the same fixture values: "auto" is 2, and more if only
    containers grew. `max_bytes` per run are tolerated, and `ignore` lists rules `pattern: reason`.
    """
    asked = None if runs == "auto" else runs
    for name, number, least in (("warmup", warmup, 0), ("runs", asked, 1)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < least):
            raise ValueError(f"{name}={number!r}: must be a whole number, {least} or more")
    return GrowthCheck(
        warmup, asked if isinstance(asked, int) else None, parse_rules(ignore), parse_bytes(max_bytes)
    )


def limit_peak_memory(limit: int | str | Callable[..., Any], device: object = None) -> PeakLimit:
    """Fail the test if its body adds more than `limit` (bytes, or text such as "64 MiB") at its peak.

    `limit` may be a function of the test's arguments and parameters, such as `lambda batch: batch * 4096`;
    `device`, such as "cpu" or "cuda:0", is where; without it the accelerator if the body uses one, else the cpu.
    """
    if device is not None and not _DEVICE.fullmatch(str(device)):
        raise ValueError(f"device={device!r}: write a device such as 'cpu' or 'cuda:0'")
    return PeakLimit(
        limit if callable(limit) else parse_bytes(limit), None if device is None else str(device)
    )


def no_findings(min_bytes: int | str = "1 MiB", kinds: object = None) -> FindingsCheck:
    """Fail the test if its body holds memory that it could free or avoid, and whose absence would lower its peak.

    Findings of fewer than `min_bytes` (bytes, or text such as "64 KiB") do not count. `kinds` lists the kinds that
    count, such as ["graph", "drag"]; without it all do.
    """
    least = parse_bytes(min_bytes)
    if kinds is None:
        return FindingsCheck(least)
    from memwatch.kinds.findings import FindingKind

    known = {kind.value for kind in FindingKind}
    listed: list[Any] = [kinds] if isinstance(kinds, str) or not isinstance(kinds, Iterable) else list(kinds)
    for kind in listed:
        if kind not in known:
            raise ValueError(f"kinds={kind!r}: choose of {', '.join(sorted(known))}")
    return FindingsCheck(least, frozenset(listed))


def allow_tensor_leaks(*, reason: str) -> Allowance:
    """Do not check this test for leaks; `reason` says why and is shown in the report."""
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError(f"reason={reason!r}: say why this test may leak")
    return Allowance(reason.strip())


_MARKERS: Final[dict[str, Callable[..., Any]]] = {
    marker.__name__: marker
    for marker in (no_tensor_leaks, limit_peak_memory, no_findings, allow_tensor_leaks)
}
_SIGNATURES: Final = {
    "no_tensor_leaks": 'no_tensor_leaks(warmup=1, runs="auto", ignore=(), max_bytes=0)',
    "limit_peak_memory": "limit_peak_memory(limit, device=None)",
    "no_findings": 'no_findings(min_bytes="1 MiB", kinds=None)',
    "allow_tensor_leaks": "allow_tensor_leaks(reason=...)",
}


def register(config: pytest.Config) -> None:
    """Declare the markers, with the help that `pytest --markers` prints."""
    for name, marker in _MARKERS.items():
        config.addinivalue_line("markers", f"{_SIGNATURES[name]}: {' '.join(inspect.getdoc(marker).split())}")  # type: ignore[union-attr]


def read_mark(mark: pytest.Mark) -> Any:
    """Return the check that one of memwatch's markers describes.

    Raises:
        pytest.UsageError: an argument is wrong; the message shows the right usage.
    """
    try:
        return _MARKERS[mark.name](*mark.args, **mark.kwargs)
    except (TypeError, ValueError, MemwatchError, pytest.UsageError) as error:
        raise pytest.UsageError(
            f"@pytest.mark.{mark.name}: {error}; usage: {_SIGNATURES[mark.name]}"
        ) from error


def check_marks(items: list[pytest.Item]) -> None:
    """Raise if a test has a wrong marker, so that the run stops before its first test.

    Raises:
        pytest.UsageError: the message names the first tests with wrong markers.
    """
    wrong = []
    known: dict[int, str] = {}  # a marker of a class or a module is read once for all its tests
    for item in items:
        for mark in item.iter_markers():
            if mark.name in _MARKERS:
                if id(mark) not in known:
                    known[id(mark)] = _fault(mark)
                if known[id(mark)]:
                    wrong.append(f"{item.nodeid}: {known[id(mark)]}")
    if wrong:
        more = [f"... and {len(wrong) - 5} more tests"] if len(wrong) > 5 else []
        raise pytest.UsageError("\n".join([*wrong[:5], *more]))


def _fault(mark: pytest.Mark) -> str:
    try:
        read_mark(mark)
    except pytest.UsageError as error:
        return str(error)
    return ""


def leak_mark(item: pytest.Item) -> GrowthCheck | Allowance | None:
    """Return the closest marker about leaks. Of two markers on the same level, the one that allows leaks wins."""
    found = None
    for node, mark in item.iter_markers_with_node():
        if mark.name not in ("no_tensor_leaks", "allow_tensor_leaks"):
            continue
        if found is None or (found[0] is node and mark.name == "allow_tensor_leaks"):
            found = node, mark
    return None if found is None else read_mark(found[1])


def has_peak_mark(item: pytest.Item) -> bool:
    """Return True if a test limits its peak by itself."""
    return item.get_closest_marker("limit_peak_memory") is not None


def findings_check(item: pytest.Item, mode: str) -> FindingsCheck | None:
    """Return the check of a test's closest marker, or the check for all tests, or None."""
    mark = item.get_closest_marker("no_findings") if mode != "off" else None
    if mark is not None:
        check: FindingsCheck = read_mark(mark)
        return check
    return no_findings() if mode == "all" else None


def peak_limit(item: pytest.Item, settings: Settings) -> PeakLimit | None:
    """Return the limit of the closest marker, or the limit of the whole suite."""
    mark = item.get_closest_marker("limit_peak_memory")
    if mark is not None:
        limit: PeakLimit = read_mark(mark)
        return limit
    return PeakLimit(settings.limit_bytes) if settings.limit_bytes is not None else None


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
