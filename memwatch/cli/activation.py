"""Record a program that was started with MEMWATCH in its environment, without a change to the program.

The wheel puts `memwatch.pth` beside its packages. Python runs that line at every start, and it calls `activate` only
where the variable is set. Nothing is imported here that takes time, for most Python processes never import torch.
"""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NoReturn

from memwatch.job import CHILDREN

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE: Final = "MEMWATCH"
_LEFT_OUT: Final = frozenset({"memwatch", "torchrun", "torch.distributed.run", "torch.distributed.launch"})
_SWITCHES: Final = {"1": True, "0": False}
_activated: Final[list[int]] = []
"""The process that was activated: Python may run the line twice, as where `lib64` is a link to `lib`."""


def activate() -> None:
    """Have this process recorded once it imports torch. A wrong option ends it before the program starts.

    Three kinds of processes are left out: commands of memwatch itself, torch's launcher of ranks, and what
    `memwatch run --children` records already.
    """
    if _activated or CHILDREN in os.environ or _is_left_out(sys.orig_argv):
        return
    _activated.append(os.getpid())
    text = os.environ[VARIABLE].strip()
    if text == "0":
        return
    try:
        options = _read(text)
    except ValueError as error:
        _refuse(str(error))
    from memwatch.children.torch_import import when_torch_is_imported

    started_as = os.getpid()

    def record() -> None:
        if (
            os.getpid() == started_as
        ):  # a fork that imports torch for itself is no process that Python started
            if options.pop("monitor", False):
                from memwatch.cli.monitored import monitor_this_process

                monitor_this_process(options)
                return
            from memwatch.cli.activated import record_this_process

            record_this_process(options)

    when_torch_is_imported(record)


def _is_left_out(words: list[str]) -> bool:
    """Return whether Python was started as a command of memwatch, or as torch's launcher of ranks.

    The launcher makes no tensor, and would take the file name of rank 0. Other launchers are found by their end: a
    process that ran no op leaves no file.
    """
    modules = [after for word, after in pairwise(words) if word == "-m"]
    return bool(_LEFT_OUT.intersection((*modules[:1], *map(os.path.basename, words[1:2]))))


def _read(text: str) -> dict[str, Any]:
    """Return the options that the variable sets, with the names that `memwatch run` has for them.

    Raises:
        ValueError: an option does not exist, or its value means nothing.
    """
    options: dict[str, Any] = {}
    words = [part.strip() for part in text.split(",") if part.strip()]
    readers = _READERS
    if words[:1] == ["monitor"]:
        options["monitor"], readers = True, _READERS_OF_MONITOR
        del words[0]
    for word in words:
        if word == "1":
            continue
        name, equals, value = word.partition("=")
        if not equals or name not in readers:
            alone = "monitor" if "monitor" in options else "1 or monitor"
            raise ValueError(f"{VARIABLE} has no option {word!r}; it is {alone}, or has {', '.join(readers)}")
        readers[name](options, value)
    return options


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
        raise ValueError(f"{VARIABLE}: {value!r} is no number of seconds") from None
    if not 0 < options["interval_s"] < 1e9:
        raise ValueError(f"{VARIABLE}: interval={value} is not above 0")


_READERS: Final[dict[str, Callable[[dict[str, Any], str], None]]] = {
    "out": _output,
    "limit": _limit,
    "every": _count("every"),
    "first": _count("first"),
    "stacks": _switch("stacks"),
    "replay": _switch("replay"),
    "children": _switch("children"),
    "html": _switch("html"),
    "quiet": _switch("quiet"),
}

_READERS_OF_MONITOR: Final[dict[str, Callable[[dict[str, Any], str], None]]] = {
    "out": _output,
    "interval": _seconds,
    "quiet": _switch("quiet"),
}


def _refuse(why: str) -> NoReturn:
    # Python would print a traceback for an exception here, and run the program nevertheless
    sys.stderr.write(f"memwatch: error: {why}\n")
    sys.stderr.flush()
    os._exit(2)
