"""Record a program that was started with MEMWATCH in its environment, without a change to the program.

The wheel puts `memwatch.pth` beside its packages. Python runs that line at every start, and it calls `activate` only
where the variable is set. Nothing is imported here that takes time, for most Python processes never import torch.
"""

from __future__ import annotations

import importlib
import os
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from memwatch.job import CHILDREN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VARIABLE: Final = "MEMWATCH"
_LEFT_OUT: Final = frozenset({"memwatch", "torchrun", "torch.distributed.run", "torch.distributed.launch"})
_SWITCHES: Final = {"1": True, "0": False}
_activated: Final[list[int]] = []
"""The process that was activated: Python may run the line twice, as where `lib64` is a link to `lib`."""


def activate() -> None:
    """Arrange what the variable names: it begins once this process imports torch.

    If a word of the variable is wrong, the process ends before the program starts.

    `MEMWATCH=monitor,native=1` starts the process once more here, with the sampler of malloc.

    Three kinds of processes are left out: commands of memwatch itself, torch's launcher of ranks, and processes that
    `memwatch run --children` records already.
    """
    if _activated or CHILDREN in os.environ or _is_left_out(sys.orig_argv):
        return
    _activated.append(os.getpid())
    try:
        wanted = _read(os.environ[VARIABLE])
    except ValueError as error:
        _refuse(str(error))
    if not wanted:
        return
    if wanted.get("monitor", {}).get("native"):
        from memwatch.monitor.malloc_sampler import restart_with_sampler

        if reason := restart_with_sampler():
            sys.stderr.write(f"memwatch: {reason}\n")
    from memwatch.children import when_torch_is_imported

    started_as = os.getpid()

    def start() -> None:
        # only in the process that Python started, and not in a fork that imports torch by itself
        for name, options in wanted.items() if os.getpid() == started_as else ():
            mode = _MODES[name]
            getattr(importlib.import_module(mode.module), mode.function)(options)

    when_torch_is_imported(start)


def _is_left_out(words: list[str]) -> bool:
    """Return whether Python was started as a command of memwatch, or as torch's launcher of ranks.

    The launcher makes no tensor, and would take the file name of rank 0. Other launchers are found by their end: a
    process that ran no op leaves no file.
    """
    modules = [after for word, after in pairwise(words) if word == "-m"]
    return bool(_LEFT_OUT.intersection((*modules[:1], *map(os.path.basename, words[1:2]))))


def _read(text: str) -> dict[str, dict[str, Any]]:
    """Return the modes that the value of the variable names, each with its options.

    Options without a mode belong to a recording.

    Raises:
        ValueError: a word is neither a mode nor an option of one, or its value means nothing.
    """
    words = [word for word in (part.strip() for part in text.split(",")) if word]
    if words == [_NOTHING]:
        return {}
    modes = [word for word in words if word in _MODES] or [_RECORD]
    wanted: dict[str, dict[str, Any]] = {mode: {} for mode in modes}
    for word in words:
        if word in _MODES:
            continue
        name, equals, value = word.partition("=")
        takers = [mode for mode in wanted if equals and name in _MODES[mode].options]
        if not takers:
            known = [f"{name}=" for mode in wanted for name in _MODES[mode].options]
            raise ValueError(f"{VARIABLE} does not know {word!r}; it takes {', '.join([*_MODES, *known])}")
        for mode in takers:
            _MODES[mode].options[name](wanted[mode], value)
    return wanted if words else {}


def _switch(name: str) -> Callable[[dict[str, Any], str], None]:
    def read(options: dict[str, Any], value: str) -> None:
        if value not in _SWITCHES:
            raise ValueError(f"{VARIABLE}: {value!r} is neither 1 nor 0")
        options[name] = _SWITCHES[value]

    return read


def _count(name: str) -> Callable[[dict[str, Any], str], None]:
    def read(options: dict[str, Any], value: str) -> None:
        if not value.isdecimal() or int(value) < 1:
            raise ValueError(f"{VARIABLE}: {value!r} is not a whole number of 1 or more")
        options[name] = int(value)

    return read


def _output(options: dict[str, Any], value: str) -> None:
    if not value:
        raise ValueError(f"{VARIABLE}: out= names no file")
    options["output"] = value


def _limit(options: dict[str, Any], value: str) -> None:
    from memwatch.sizes import parse_bytes

    parse_bytes(value.rpartition("=")[2])
    options["limit"] = [*options.get("limit", ()), value]


def _seconds(options: dict[str, Any], value: str) -> None:
    try:
        options["interval_s"] = float(value)
    except ValueError:
        raise ValueError(f"{VARIABLE}: {value!r} is not a number of seconds") from None
    if not 0 < options["interval_s"] < 1e9:
        raise ValueError(f"{VARIABLE}: interval={value} is not above 0")


class _Mode(NamedTuple):
    """A word of the variable: the function that this process calls for it, and the readers of its options."""

    module: str
    function: str
    options: Mapping[str, Callable[[dict[str, Any], str], None]]


_NOTHING, _RECORD = "0", "1"
_MODES: Final = {
    _RECORD: _Mode(
        "memwatch.cli.recording",
        "record_this_process",
        {
            "out": _output,
            "limit": _limit,
            "every": _count("every"),
            "first": _count("first"),
            "stacks": _switch("stacks"),
            "replay": _switch("replay"),
            "children": _switch("children"),
            "html": _switch("html"),
            "quiet": _switch("quiet"),
        },
    ),
    "attach": _Mode("memwatch.attach.listener", "let_in", {}),
    "monitor": _Mode(
        "memwatch.cli.monitored",
        "monitor_this_process",
        {"out": _output, "interval": _seconds, "native": _switch("native"), "quiet": _switch("quiet")},
    ),
    "oom": _Mode("memwatch.cli.monitored", "report_when_memory_runs_out", {"out": _output}),
}
"""Every word that the variable may have without `=`. Its function is called with the options once torch is imported."""


def _refuse(why: str) -> NoReturn:
    # Python would print a traceback for an exception here, and run the program nevertheless
    sys.stderr.write(f"memwatch: error: {why}\n")
    sys.stderr.flush()
    os._exit(2)
