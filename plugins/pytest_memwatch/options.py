"""The settings of a session: its command-line options, else its ini keys, else the settings of the project."""

from __future__ import annotations

from dataclasses import dataclass
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
        enabled: False after `--no-memwatch`.
        measure: whether every test is measured and reported.
        leaks: "marked", "all" or "off".
        findings: the same, for avoidable memory.
        limit_bytes: peak limit of tests without a marker, bytes.
        html: folder for one page per failing test.
        json: file for the results.
        save: name under which the peaks are saved.
        compare: name of the baseline to compare with; empty for the latest.
        compare_fail: how far above its baseline a peak may be.
        warmup: runs of the body before measuring growth, if the marker does not set it.
        runs: measured runs of the body, if the marker does not set it; None for 2, and more if only containers grew.
        top: number of tests in the summary, and of lines for each; 0 for all.
        stack_depth: frames shown for each allocation.
        ignore: rules of the ini file and of the project's settings.
        leaks_min_bytes: leaks of fewer bytes do not count.
    """

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
        own_code_folders()  # now, because a test may change the working directory
    except MemwatchError as error:
        raise pytest.UsageError(str(error)) from None
    reports = ("memwatch_html", "memwatch_json", "memwatch_save", "memwatch_compare")
    settings = Settings(
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
"""The options, each with its arguments of `addoption`."""

_INI_KEYS: Final[dict[str, dict[str, Any]]] = {
    "memwatch": {"help": "measure each test, like --memwatch", "type": "bool", "default": False},
    "memwatch_leaks": {"help": "like --memwatch-leaks: marked, all or off", "default": ""},
    "memwatch_leaks_min_bytes": {
        "help": "like --memwatch-leaks-min-bytes: a size such as 1 KiB",
        "default": "",
    },
    "memwatch_findings": {"help": "like --memwatch-findings: marked, all or off", "default": ""},
    "memwatch_limit_peak": {"help": "like --memwatch-limit-peak: a size such as 64 MiB", "default": ""},
    "memwatch_ignore": {
        "help": "leaks that do not count, one rule a line, `pattern: reason`",
        "type": "linelist",
        "default": [],
    },
}
"""The ini keys, each with its arguments of `addini`."""


def add_options(parser: pytest.Parser) -> None:
    """Declare the options and the ini keys."""
    group = parser.getgroup("memwatch", "tensor memory of tests (memwatch)")
    for name, arguments in _OPTIONS.items():
        group.addoption(name, **arguments)
    for key, arguments in _INI_KEYS.items():
        parser.addini(key, **arguments)
