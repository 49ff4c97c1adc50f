"""The settings of a project: the table `[tool.memwatch]` of `pyproject.toml`.

memwatch searches the working directory and then each folder above it, and takes the nearest file that has the table.
The command line and the pytest plugin stop at a wrong table with one line. Code that runs inside the user's program
uses `own_code_folders`, which never raises.
"""

from __future__ import annotations

import functools
import glob
import importlib
import os
import re
import sys
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from memwatch.errors import OptionError
from memwatch.signal_handlers import pass_on
from memwatch.sizes import SizeError, parse_bytes
from memwatch.text import visible

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE: Final = "pyproject.toml"
TABLE: Final = "tool.memwatch"
_TABLE: Final = re.compile(rb"""\btool["']?\s*(?:\.\s*["']?memwatch|\]|=)""")
"""Each way in TOML to begin the table: `[tool.memwatch]`, `tool.memwatch.limits = ...`, `[tool]`, `tool = {...}`."""


class SettingsError(OptionError):
    """The table has an unknown key or an invalid value. The command line exits with 2."""


class Kind(Enum):
    """The type of a value; the text names it in errors and in the documentation."""

    FOLDERS = "a list of folders, relative to the file"
    REASONS = "a table of patterns, each with its reason as text"
    SIZE = "a size, such as '8 GiB'"
    SIZES = "a size, such as '8 GiB', or a table of sizes by device"
    SHARE = "a share, such as '5%'"
    COUNT = "a whole number of 1 or more"
    SWITCH = "true or false"
    FILE_NAME = "a file name, relative to the file of the settings"


class Key(NamedTuple):
    """One setting.

    Attributes:
        name: its name below `tool.memwatch`, with the names of inner tables before a dot.
        kind: the type of its value.
        meaning: what it does; a sentence in the documentation.
    """

    name: str
    kind: Kind
    meaning: str


KEYS: Final = (
    Key(
        "own_code",
        Kind.FOLDERS,
        "Folders whose files count as your own code even if they are installed packages. Reports name their lines, and "
        "findings may suggest to change them. A name may hold `*`.",
    ),
    Key(
        "ignore_leaks",
        Kind.REASONS,
        "Leaks that `memwatch leaks` and pytest ignore, and findings that `no_findings` ignores. A pattern is the name "
        "of a cause, or text of the holder, the line, the tensor or the path.",
    ),
    Key(
        "limits.live",
        Kind.SIZES,
        "`memwatch run` stops the program at the op that raises live bytes above this size, as with `--limit`.",
    ),
    Key(
        "limits.test_peak",
        Kind.SIZE,
        "A test fails if its body adds more than this size at its peak, as with `--memwatch-limit-peak`.",
    ),
    Key(
        "limits.leak",
        Kind.SIZE,
        "Leaks of fewer bytes do not count for `memwatch leaks` and for pytest, as with `--memwatch-leaks-min-bytes`. "
        "Hooks have no bytes, and always count.",
    ),
    Key(
        "limits.growth",
        Kind.SHARE,
        "`memwatch diff` exits with 1 if the peak grew by more, as with `--fail-above`.",
    ),
    Key("run.output", Kind.FILE_NAME, "The capture. It may hold `{rank}`, `{pid}` and `{host}`."),
    Key("run.stacks", Kind.SWITCH, "Whether to record call stacks."),
    Key("run.replay", Kind.SWITCH, "Whether to record the data that `memwatch plan` and `replay` need."),
    Key("run.children", Kind.SWITCH, "Whether to record child processes as well."),
    Key("run.html", Kind.SWITCH, "Whether to write the page of `memwatch report` as well."),
    Key("run.live", Kind.SWITCH, "Whether to show the memory while the program runs."),
    Key("run.quiet", Kind.SWITCH, "`true` leaves out the commands to type next."),
    Key("run.every", Kind.COUNT, "Record the ops of every N-th step, as with `--every`."),
    Key("run.first", Kind.COUNT, "Record the ops of the first N steps, as with `--first`."),
)
"""All settings. docs/settings.md lists the same; a test compares them."""

_BY_NAME: Final = {key.name: key for key in KEYS}
_TABLES: Final = frozenset(key.name.partition(".")[0] for key in KEYS if "." in key.name)
"""Names of the tables inside of `[tool.memwatch]`."""


class Settings(NamedTuple):
    """The settings of a project.

    Attributes:
        file: the file that has the table; None without a table.
        values: the values that are set, by the full name of their key.
    """

    file: str | None
    values: Mapping[str, Any]

    def get(self, name: str) -> Any:
        """Return the value of a key; None for a key that the project leaves out."""
        return self.values.get(_BY_NAME[name].name)

    @property
    def ignore_leaks(self) -> Mapping[str, str]:
        """The patterns of leaks that do not count, each with its reason."""
        return self.get("ignore_leaks") or {}


def project_settings() -> Settings:
    """Return the settings for the working directory.

    Raises:
        SettingsError: the table is wrong; the message names the file, the key and the allowed values.
    """
    try:
        folder = os.getcwd()
    except OSError as error:  # the folder was deleted
        pass_on(error)
        return Settings(None, {})
    return _settings_of(folder)


@functools.cache
def own_code_folders() -> tuple[str, ...]:
    """Return the folders of `own_code`, found once in this process.

    If the table is wrong, print the error as one line and return no folders: this may run inside the user's program.
    """
    try:
        return tuple(project_settings().get("own_code") or ())
    except SettingsError as error:
        pass_on(error)
        if sys.stderr is not None:
            sys.stderr.write(f"memwatch: {visible(str(error))}; memwatch uses no settings\n")
        return ()


@functools.cache
def _settings_of(folder: str) -> Settings:
    while True:
        file = os.path.join(folder, FILE)
        table = _table_in(file)
        if table is not None:
            return Settings(file, _checked(file, table))
        parent = os.path.dirname(folder)
        if parent == folder:
            return Settings(None, {})
        folder = parent


def _table_in(file: str) -> object:
    """Return the table `[tool.memwatch]` of a file; None if the file or the table is missing."""
    try:
        with open(file, "rb") as opened:
            content = opened.read()
    except OSError as error:
        pass_on(error)
        return None
    # saves the import of the parser in most projects, and Python 3.10 needs none there
    if b"memwatch" not in content or not _TABLE.search(content):
        return None
    try:
        parser: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError as error:
        pass_on(error)
        raise SettingsError(
            f"cannot read {file}: Python 3.10 needs tomli for it; pip install tomli"
        ) from None
    try:
        tools = parser.loads(content.decode("utf-8")).get("tool")
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise SettingsError(f"{file} is not valid TOML: {error}; correct it") from None
    return tools.get("memwatch") if isinstance(tools, dict) else None


def _checked(file: str, table: object) -> dict[str, Any]:
    """Return the values of a table by the full names of their keys."""
    if not isinstance(table, dict):
        raise SettingsError(
            f"{file}: [{TABLE}] must be a table, not {_shown(table)}; its keys are {_names()}"
        )
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name in _TABLES:
            if not isinstance(value, dict):
                raise SettingsError(
                    f"{file}: {TABLE}.{name} must be a table, not {_shown(value)}; its keys are {_names(name)}"
                )
            values |= {f"{name}.{inner}": each for inner, each in value.items()}
        else:
            values[name] = value
    for name, value in values.items():
        if name not in _BY_NAME:
            inside = name.partition(".")[0]
            raise SettingsError(
                f"{file}: [{TABLE}] has no key {name!r}; the keys are {_names(inside if inside in _TABLES else '')}"
            )
        try:
            values[name] = _value(os.path.dirname(file), _BY_NAME[name].kind, value)
        except ValueError as error:
            raise SettingsError(f"{file}: {TABLE}.{name} must be {error}") from None
    return values


def _names(table: str = "") -> str:
    """Return the names of all keys, or of those in an inner table."""
    return ", ".join(key.name for key in KEYS if key.name.startswith(f"{table}." if table else ""))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _value(folder: str, kind: Kind, value: Any) -> Any:
    """Return a value in the form that memwatch uses.

    Raises:
        ValueError: the value is not of the kind; the text names the kind.
    """
    problem = ValueError(f"{kind.value}, not {_shown(value)}")
    if kind is Kind.FOLDERS:
        if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
            raise problem
        return [found for each in value for found in _folders(folder, each)]
    if kind is Kind.REASONS:
        if not isinstance(value, dict):
            raise problem
        for pattern, reason in value.items():
            if not isinstance(reason, str) or not pattern.strip() or not reason.strip():
                raise ValueError(f"{kind.value}; {pattern!r} has {_shown(reason)}")
        return {pattern.strip(): reason.strip() for pattern, reason in value.items()}
    if kind is Kind.SIZES and isinstance(value, dict):
        if not value or not all(device and _is_size(each) for device, each in value.items()):
            raise problem
        return [f"{device}={each}" for device, each in value.items()]
    if kind in (Kind.SIZE, Kind.SIZES):
        if not _is_size(value):
            raise problem
        return [str(value)] if kind is Kind.SIZES else parse_bytes(value)
    if kind is Kind.SHARE:
        ratio = _ratio(value)
        if ratio is None:
            raise problem
        return ratio
    if kind is Kind.COUNT:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise problem
        return value
    if kind is Kind.SWITCH:
        if not isinstance(value, bool):
            raise problem
        return value
    if not isinstance(value, str) or not value:
        raise problem
    return os.path.join(folder, value)


def _folders(folder: str, pattern: str) -> list[str]:
    """Return the folders that a value of `own_code` names; a pattern with `*` may match none."""
    path = os.path.normpath(os.path.join(folder, os.path.expanduser(pattern)))
    if glob.has_magic(pattern):
        start = os.path.join(glob.escape(folder), os.path.expanduser(pattern))
        return [os.path.normpath(found) for found in sorted(glob.glob(start)) if os.path.isdir(found)]
    if not os.path.isdir(path):
        raise ValueError(f"{Kind.FOLDERS.value}; {path} is not a folder")
    return [path]


def _is_size(value: object) -> bool:
    if not isinstance(value, (int, str)):
        return False
    try:
        parse_bytes(value)
    except SizeError:
        return False
    return True


def _ratio(value: object) -> float | None:
    """Return a share such as '5%' as a ratio; None for other texts."""
    if not isinstance(value, str) or not value.endswith("%"):
        return None
    try:
        ratio = float(value[:-1]) / 100
    except ValueError:
        return None
    return ratio if 0 <= ratio < float("inf") else None
