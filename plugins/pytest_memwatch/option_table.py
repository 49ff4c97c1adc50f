"""The command-line options, and the ini keys that replace them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pytest

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
