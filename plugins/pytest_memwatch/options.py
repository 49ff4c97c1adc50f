"""The settings of a session, and the checks of each test.

A command-line option overrides its ini key, and an ini key overrides `[tool.memwatch]` of pyproject.toml. Markers,
fixtures and settings decide the checks of a test before its body runs.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from memwatch.errors import MemwatchError
from memwatch.settings import own_code_folders, project_settings
from memwatch.sizes import parse_bytes
from pytest_memwatch.ignore import IgnoreRule, parse_rules

if TYPE_CHECKING:
    from collections.abc import Callable

MODES: Final = ("marked", "all", "off")
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "--memwatch": {
        "action": "store_true",
        "help": "Measure the peak memory of each test body and print a report.",
    },
    "--no-memwatch": {
        "action": "store_true",
        "help": "Switch every check and measurement of memwatch off; markers pass.",
    },
    "--memwatch-leaks": {
        "metavar": "{marked,all,off}",
        "help": "Which tests are checked for leaked tensors: those with the marker or fixture no_tensor_leaks "
        "(marked, the default), all of them (one run each), or none (off).",
    },
    "--memwatch-leaks-min-bytes": {
        "metavar": "SIZE",
        "help": "Do not count leaks of fewer bytes than SIZE, such as 1KiB.",
    },
    "--memwatch-findings": {
        "metavar": "{marked,all,off}",
        "help": "Which tests fail for memory that they could free or avoid: those with the marker no_findings (marked, "
        "the default), all of them, or none (off).",
    },
    "--memwatch-findings-min-bytes": {
        "metavar": "SIZE",
        "help": "Do not count findings of fewer bytes than SIZE in tests without the marker (default 1 MiB).",
    },
    "--memwatch-limit-peak": {
        "metavar": "SIZE",
        "help": "Fail each test whose body adds more than SIZE at its peak.",
    },
    "--memwatch-html": {"metavar": "DIR", "help": "Write one page for each failing test into DIR."},
    "--memwatch-json": {
        "metavar": "PATH",
        "help": "Write the results of all measured and checked tests to PATH.",
    },
    "--memwatch-save": {
        "metavar": "NAME",
        "help": "Save the peaks of passing tests as baseline .memwatch/NAME.json.",
    },
    "--memwatch-compare": {
        "metavar": "NAME",
        "nargs": "?",
        "const": "",
        "help": "Compare the peaks with a saved baseline, by default the latest.",
    },
    "--memwatch-compare-fail": {
        "metavar": "TOLERANCE",
        "help": "Fail tests whose peak is above the baseline by more than this: 5%% or 1MiB. Lower never fails.",
    },
    "--memwatch-warmup": {
        "metavar": "N",
        "type": int,
        "default": 1,
        "help": "Runs before growth is measured (default 1).",
    },
    "--memwatch-runs": {
        "metavar": "N",
        "type": int,
        "help": "Runs that measure growth (default 2, and more if a window may be filling up).",
    },
    "--memwatch-top": {
        "metavar": "N",
        "type": int,
        "default": 5,
        "help": "Tests, and lines per test, to show; 0: all (default 5).",
    },
    "--memwatch-stack-depth": {
        "metavar": "N",
        "type": int,
        "default": 1,
        "help": "Frames per allocation to show (default 1).",
    },
}
"""Each command-line option, and the arguments for `addoption`."""
_INI_KEYS: Final[dict[str, dict[str, Any]]] = {
    "memwatch": {"help": "measure each test, like --memwatch", "type": "bool", "default": False},
    "memwatch_leaks": {"help": "like --memwatch-leaks: marked, all or off", "default": ""},
    "memwatch_leaks_min_bytes": {
        "help": "like --memwatch-leaks-min-bytes: a size such as 1 KiB",
        "default": "",
    },
    "memwatch_findings": {"help": "like --memwatch-findings: marked, all or off", "default": ""},
    "memwatch_findings_min_bytes": {
        "help": "like --memwatch-findings-min-bytes: a size such as 64 KiB",
        "default": "",
    },
    "memwatch_limit_peak": {"help": "like --memwatch-limit-peak: a size such as 64 MiB", "default": ""},
    "memwatch_ignore": {
        "help": "leaks that do not count, one rule a line, `pattern: reason`",
        "type": "linelist",
        "default": [],
    },
}
"""Each ini key, and the arguments for `addini`."""
_DEVICE: Final = re.compile(r"[a-z_]+(:[0-9]+)?")
_SIGNATURES: Final = {
    "no_tensor_leaks": 'no_tensor_leaks(warmup=1, runs="auto", ignore=(), max_bytes=0)',
    "limit_peak_memory": "limit_peak_memory(limit, device=None)",
    "no_findings": 'no_findings(min_bytes="1 MiB", kinds=None)',
    "allow_tensor_leaks": "allow_tensor_leaks(reason=...)",
}
FIXTURE_ASKED: Final = pytest.StashKey[bool]()
"""The fixture `no_tensor_leaks` sets this key in the stash of a test that uses it."""


@dataclass(frozen=True)
class Tolerance:
    """How far above its baseline a peak may be."""

    text: str
    ratio: float = 0.0
    nbytes: int = 0

    def highest_bytes(self, saved_bytes: int) -> int:
        """Return the highest peak that still passes, bytes."""
        return int(saved_bytes * (1 + self.ratio)) + self.nbytes


@dataclass(frozen=True)
class Settings:
    """The values of all options and ini keys.

    Attributes:
        root: pytest's root folder; a cause shows its files relative to it. None if every check is off.
        enabled: False after `--no-memwatch`.
        measure: whether every test is measured and reported.
        leaks: the tests that are checked for leaks: "marked", "all" or "off".
        findings: the tests that fail for avoidable memory: "marked", "all" or "off".
        limit_bytes: peak limit of tests without a marker, bytes.
        html: folder for one page per failing test.
        json: file for the results.
        save: name under which the peaks are saved.
        compare: name of the baseline to compare with; empty for the latest.
        compare_fail: how far above its baseline a peak may be.
        warmup: runs of the body before measuring growth, if the marker does not set it.
        runs: measured runs of the body, if the marker does not set it. By default 2 runs, and more if these cannot
            show whether memory leaks.
        top: number of tests in the summary, and of lines for each test; 0 for all.
        stack_depth: frames shown for each allocation.
        ignore: rules of the ini file and of `[tool.memwatch]`.
        leaks_min_bytes: leaks of fewer bytes do not count.
        findings_min_bytes: findings of fewer bytes do not count in tests without a marker. None for 1 MiB, the default
            of the marker.
    """

    root: Path | None = None
    enabled: bool = True
    measure: bool = False
    leaks: str = "marked"
    findings: str = "marked"
    limit_bytes: int | None = None
    html: Path | None = None
    json: Path | None = None
    save: str | None = None
    compare: str | None = None
    compare_fail: Tolerance | None = None
    warmup: int = 1
    runs: int | None = None
    top: int = 5
    stack_depth: int = 1
    ignore: tuple[IgnoreRule, ...] = ()
    leaks_min_bytes: int = 0
    findings_min_bytes: int | None = None

    @property
    def shows_lines(self) -> bool:
        """Whether the summary or the file of results lists lines of every test that is measured."""
        return self.measure or self.json is not None


SETTINGS: Final = pytest.StashKey[Settings]()


def read_settings(config: pytest.Config) -> Settings:
    """Return the settings of a session.

    Raises:
        pytest.UsageError: a value is wrong; the message names the option and the right values.
    """
    if config.getoption("no_memwatch"):
        return Settings(enabled=False, leaks="off", findings="off")
    option: Callable[[str], Any] = config.getoption
    try:
        project = project_settings()
        own_code_folders()  # fills its cache now, because a test may change the working directory
    except MemwatchError as error:
        raise pytest.UsageError(str(error)) from None
    reports = ("memwatch_html", "memwatch_json", "memwatch_save", "memwatch_compare")
    settings = Settings(
        root=config.rootpath,
        measure=bool(
            option("memwatch")
            or config.getini("memwatch")
            or any(option(name) is not None for name in reports)
        ),
        leaks=_mode("leaks", option("memwatch_leaks") or config.getini("memwatch_leaks") or "marked"),
        findings=_mode(
            "findings", option("memwatch_findings") or config.getini("memwatch_findings") or "marked"
        ),
        leaks_min_bytes=_size(
            "leaks-min-bytes",
            option("memwatch_leaks_min_bytes") or config.getini("memwatch_leaks_min_bytes"),
            project.get("limits.leak"),
        )
        or 0,
        findings_min_bytes=_size(
            "findings-min-bytes",
            option("memwatch_findings_min_bytes") or config.getini("memwatch_findings_min_bytes"),
        ),
        limit_bytes=_size(
            "limit-peak",
            option("memwatch_limit_peak") or config.getini("memwatch_limit_peak"),
            project.get("limits.test_peak"),
        ),
        html=_path(config, option("memwatch_html")),
        json=_path(config, option("memwatch_json")),
        save=_name("save", option("memwatch_save")),
        compare=_name("compare", option("memwatch_compare")),
        compare_fail=_tolerance(option("memwatch_compare_fail")),
        warmup=_count("warmup", option("memwatch_warmup"), 0),
        runs=None if option("memwatch_runs") is None else _count("runs", option("memwatch_runs"), 1),
        top=_count("top", option("memwatch_top"), 0),
        stack_depth=_count("stack-depth", option("memwatch_stack_depth"), 1),
        ignore=(*parse_rules(config.getini("memwatch_ignore")), *parse_rules(project.ignore_leaks)),
    )
    if settings.compare_fail is not None and settings.compare is None:
        raise pytest.UsageError("--memwatch-compare-fail needs a baseline: add --memwatch-compare[=NAME]")
    return settings


def _mode(option: str, mode: str) -> str:
    if mode not in MODES:
        raise pytest.UsageError(f"--memwatch-{option}={mode}: choose one of {', '.join(MODES)}")
    return mode


def _size(option: str, size: str | None, default_bytes: int | None = None) -> int | None:
    try:
        return parse_bytes(size) if size else default_bytes
    except MemwatchError as error:
        raise pytest.UsageError(f"--memwatch-{option}={size}: {error}") from error


def _path(config: pytest.Config, path: str | None) -> Path | None:
    return config.invocation_params.dir / path if path else None


def _name(option: str, name: str | None) -> str | None:
    if name and (Path(name).name != name or name.startswith(".")):
        raise pytest.UsageError(
            f"--memwatch-{option}={name}: a baseline has a plain name, such as --memwatch-{option}=main"
        )
    if name == "" and option == "save":
        raise pytest.UsageError("--memwatch-save needs a name, such as --memwatch-save=main")
    return name


def _count(option: str, number: int, least: int) -> int:
    if number < least:
        raise pytest.UsageError(f"--memwatch-{option}={number}: must be {least} or more")
    return number


def _tolerance(text: str | None) -> Tolerance | None:
    if not text:
        return None
    if not text.endswith("%"):
        return Tolerance(text, nbytes=_size("compare-fail", text) or 0)
    try:
        ratio = float(text[:-1]) / 100
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio < float("inf"):
        raise pytest.UsageError(
            f"--memwatch-compare-fail={text}: write a share such as 5%, or a size such as 1MiB"
        )
    return Tolerance(text, ratio=ratio)


def add_options(parser: pytest.Parser) -> None:
    """Declare the options and the ini keys."""
    group = parser.getgroup("memwatch", "tensor memory of tests (memwatch)")
    for name, arguments in _OPTIONS.items():
        group.addoption(name, **arguments)
    for key, arguments in _INI_KEYS.items():
        parser.addini(key, **arguments)


@dataclass(frozen=True)
class GrowthCheck:
    """Run the body several times. Tensors that each further run adds are a leak.

    If `warmup` or `runs` is None, the options set it.
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

    def for_test(self, arguments: dict[str, Any]) -> PeakLimit:
        """Return the limit in bytes for a test with these arguments.

        Raises:
            LimitError: the test lacks an argument that the function needs, or the function returns no size.
        """
        __tracebackhide__ = True  # if the function fails, its own lines are enough
        if not callable(self.limit):
            return self
        size = _called_with(self.limit, arguments)
        try:
            return replace(self, limit=parse_bytes(size))
        except MemwatchError as error:
            raise LimitError(
                f"@pytest.mark.limit_peak_memory: its function returned no size: {error}"
            ) from None


class LimitError(MemwatchError):
    """The function of a `limit_peak_memory` marker does not fit its test."""


def _called_with(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call the function of a limit. Pass it the arguments of the test that have the names of its parameters."""
    __tracebackhide__ = True
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:  # some functions in C have no signature
        raise LimitError(
            f"@pytest.mark.limit_peak_memory: the parameters of its function are unknown ({error}); write a lambda"
        ) from None
    by_position: list[Any] = []
    by_name: dict[str, Any] = {}
    for parameter in parameters:
        name = parameter.name
        if parameter.kind is parameter.VAR_KEYWORD:
            by_name = arguments | by_name
        elif parameter.kind is parameter.VAR_POSITIONAL:
            continue
        elif name in arguments and parameter.kind is parameter.POSITIONAL_ONLY:
            by_position.append(arguments[name])
        elif name in arguments:
            by_name[name] = arguments[name]
        elif parameter.default is parameter.empty:
            known = ", ".join(f"`{each}`" for each in arguments)
            raise LimitError(
                f"@pytest.mark.limit_peak_memory: its function has a parameter `{name}`, but the test has "
                + (f"only the arguments {known}" if known else "no arguments")
            )
    return function(*by_position, **by_name)


@dataclass(frozen=True)
class FindingsCheck:
    """Check for avoidable memory: a finding of these kinds and of at least `min_bytes` fails the test.

    Attributes:
        min_bytes: findings of fewer bytes do not count.
        kinds: the kinds that count; None for all.
        only_with_backward: whether a finding about an autograd graph counts only if the test runs a backward. Many
            tests run only a forward, to check its result, and nobody would change them because of its graph.
    """

    min_bytes: int = 0
    kinds: frozenset[str] | None = None
    only_with_backward: bool = False


@dataclass(frozen=True)
class Allowance:
    """A permission for the test to leak."""

    reason: str


def no_tensor_leaks(
    warmup: int | None = None,
    runs: int | str | None = None,
    ignore: object = (),
    max_bytes: int | str = 0,
) -> GrowthCheck:
    """Fail the test if each further run of its body leaves tensors behind.

    The body runs `warmup` (1) plus `runs` times with the same fixture values. "auto" is 2 runs, and more if these
    cannot show whether memory leaks. A run may leave `max_bytes`. `ignore` lists rules `pattern: reason`.
    """
    run_count = None if runs == "auto" else runs
    for name, number, least in (("warmup", warmup, 0), ("runs", run_count, 1)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < least):
            raise ValueError(f"{name}={number!r}: must be a whole number, {least} or more")
    return GrowthCheck(
        warmup, run_count if isinstance(run_count, int) else None, parse_rules(ignore), parse_bytes(max_bytes)
    )


def limit_peak_memory(limit: int | str | Callable[..., Any], device: object = None) -> PeakLimit:
    """Fail the test if its body adds more than `limit` (bytes, or text such as "64 MiB") at its peak.

    `limit` may be a function of the test's arguments and parameters, such as `lambda batch: batch * 4096`. `device`
    names the device, such as "cpu" or "cuda:0". The default is the accelerator if the body uses one, else the cpu.
    """
    if device is not None and not _DEVICE.fullmatch(str(device)):
        raise ValueError(f"device={device!r}: write a device such as 'cpu' or 'cuda:0'")
    return PeakLimit(
        limit if callable(limit) else parse_bytes(limit), None if device is None else str(device)
    )


def no_findings(min_bytes: int | str = "1 MiB", kinds: object = None) -> FindingsCheck:
    """Fail the test if its peak is higher because its body holds memory that it could free or avoid.

    Findings of fewer than `min_bytes` (bytes, or text such as "64 KiB") do not count. `kinds` lists the kinds that
    count, such as ["graph", "drag"]. By default all kinds count.
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
    """Return the check or the permission of the closest marker about leaks.

    If a function, a class or a module has both markers, `allow_tensor_leaks` wins.
    """
    found = None
    for node, mark in item.iter_markers_with_node():
        if mark.name not in ("no_tensor_leaks", "allow_tensor_leaks"):
            continue
        if found is None or (found[0] is node and mark.name == "allow_tensor_leaks"):
            found = node, mark
    return None if found is None else read_mark(found[1])


def has_peak_mark(item: pytest.Item) -> bool:
    """Return True if a marker limits the peak of a test."""
    return item.get_closest_marker("limit_peak_memory") is not None


def findings_check(item: pytest.Item, settings: Settings) -> FindingsCheck | None:
    """Return the check of a test's closest marker, else the check for all tests, else None."""
    mark = item.get_closest_marker("no_findings") if settings.findings != "off" else None
    if mark is not None:
        check: FindingsCheck = read_mark(mark)
        return check
    if settings.findings != "all":
        return None
    least_bytes = settings.findings_min_bytes
    check = no_findings() if least_bytes is None else FindingsCheck(least_bytes)
    return replace(check, only_with_backward=True)


def peak_limit(item: pytest.Item, settings: Settings) -> PeakLimit | None:
    """Return the limit of the closest marker, else the limit of the whole suite, else None."""
    mark = item.get_closest_marker("limit_peak_memory")
    if mark is not None:
        limit: PeakLimit = read_mark(mark)
        return limit
    return PeakLimit(settings.limit_bytes) if settings.limit_bytes is not None else None


@dataclass(frozen=True)
class Checks:
    """The checks of one test.

    Attributes:
        growth: run the body several times and report tensors that each further run adds.
        single_pass: run the body once and report tensors that it leaves behind.
        allowed: the permission of the marker `allow_tensor_leaks`.
        limit: the largest peak that the body may add.
        findings: the avoidable memory that fails the test.
        measured: whether to measure the peak for the report.
        asked: whether a marker, not an option, limits the peak of the test.
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
    """Return the checks of a test. Call it after the setup of the fixtures, which may set `FIXTURE_ASKED`."""
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
        findings=findings_check(item, settings),
        measured=settings.measure,
        asked=has_peak_mark(item),
    )
