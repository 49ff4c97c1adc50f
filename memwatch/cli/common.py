"""Functions for all verbs: read captures, check output files, parse numbers, print messages and the next command."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
from typing import TYPE_CHECKING, Any, Final

from memwatch.output_files import OutputError, check_outputs
from memwatch.sizes import SizeError, parse_bytes
from memwatch.text import UNPRINTABLE, visible

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from memwatch.reading import Reading

ALL_TABLES_ROWS: Final = 8
"""Rows of each table in a summary that shows all tables. The help of `--rows` names the same number."""

# A command replaces an existing file only with `-f`, and it never replaces a file that it reads
_EXISTS: Final = "{} exists; choose another name with -o, or replace it with -f"


def make_room(
    *others: Path | None,
    capture: Path | None = None,
    page: Path | None = None,
    inputs: Iterable[str | os.PathLike[str]] = (),
    force: bool,
) -> None:
    """Raise if an output cannot be written. Every verb calls this first, so that a long run does not fail at its end.

    Args:
        others: other files that the verb writes. None stands for an optional file without a path.
        capture: the capture that the verb writes. It may replace only a capture, so `-o train.py` is an error.
        page: the page that the verb writes. It may replace only an HTML page.
        inputs: the files that the verb reads.
        force: whether existing files may be replaced.

    Raises:
        OutputError: an output exists and `force` is False, it is also an input or another output, or a file cannot be
            written to its path.
    """
    outputs = [path for path in (capture, page, *others) if path is not None]
    check_outputs(outputs, inputs=inputs, force=force, exists=_EXISTS)
    if capture is not None:
        _refuse_other_kind(capture, b"SQLite format 3\0", "a capture")
    if page is not None:
        _refuse_other_kind(page, b"<!doctype html>", "an HTML page")


def _refuse_other_kind(path: Path, begins: bytes, kind: str) -> None:
    """Raise if a file exists but does not begin with these bytes. An empty file may be replaced."""
    try:
        with path.open("rb") as file:
            found = file.read(len(begins))
    except OSError:  # missing or unreadable; a link to a missing file is replaced, not followed
        return
    if found and found.lower() != begins.lower():
        raise OutputError(
            f"{path} is not {kind}, so -f does not replace it; choose another name, or remove it first"
        )


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the option `--device`."""
    parser.add_argument(
        "--device",
        metavar="DEVICE",
        help="the device to look at, such as cpu or cuda:0; default the accelerator if the program used one, else cpu",
    )


def read(capture: Path, device: str | None) -> Reading:
    """Return the reading of a capture file.

    Raises:
        UnknownDeviceError: the program had no bytes on the device.
        CaptureError: the file cannot be read.
    """
    from memwatch.reading import load

    reading = load(capture)
    return reading if device is None else reading.on(device)


def emit(text: str) -> None:
    """Write text to standard output. Drop the text if standard output is closed or its reader has ended (`| head`).

    Raises:
        OutputError: standard output cannot be written, as on a full disk.
    """
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # when Python exits, it flushes standard output again: to /dev/null this cannot fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise OutputError(
                f"cannot write to standard output: {error.strerror}; send it to a place with room"
            ) from error


def say(text: str) -> None:
    """Write a line to standard error, so that standard output has only results."""
    sys.stderr.write(f"memwatch: {visible(text)}\n")


def emit_path(path: str | os.PathLike[str]) -> None:
    """Write the path of a file to standard output. If this is a terminal, escape control characters."""
    text = os.fspath(path)
    emit(f"{visible(text) if sys.stdout is not None and sys.stdout.isatty() else text}\n")


def add_json(parser: argparse._ActionsContainer) -> None:
    """Add the option `--json`. docs/json.md describes the fields."""
    parser.add_argument("--json", action="store_true", help="print JSON; sizes in bytes")


def emit_json(record: Any) -> None:
    """Write a record to standard output as indented JSON."""
    emit(json.dumps(record, indent=2) + "\n")


def positive(text: str) -> int:
    """Return a whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def not_negative(text: str) -> int:
    """Return a whole number of 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def size(text: str) -> str:
    """Return the text unchanged if it is a size such as `8GiB`."""
    try:
        parse_bytes(text)
    except SizeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def size_of_device(text: str) -> str:
    """Return the text unchanged if it is a size above 0, or a device and such a size: `cuda:0=8GiB`."""
    if not parse_bytes(size(text.rpartition("=")[2])):
        raise argparse.ArgumentTypeError(f"{text!r} leaves no room for any tensor; give a size above 0")
    return text


def budget(text: str) -> str:
    """Return the text unchanged if it is a size, or a share of a program's peak such as `60%`."""
    from memwatch.planner.request import parse_budget

    try:
        parse_budget(text, 0)
    except SizeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def share(text: str) -> float:
    """Return a share such as `5%` as a ratio, 0.05."""
    number = text.removesuffix("%")
    try:
        ratio = float(number) / 100
    except ValueError:
        ratio = -1.0
    if number == text or not 0 <= ratio < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; write it as 5%")
    return ratio


def memwatch_command() -> list[str]:
    """Return a command that starts memwatch again, as this process was started.

    If the program itself started this process, with `MEMWATCH=1`, return the memwatch of the same Python.
    """
    started = sys.argv[0] if sys.argv else ""
    name = os.path.basename(started)
    if name != "__main__.py":
        if os.path.splitext(name)[0] == "memwatch":
            return [_shortest(started)]
        script = os.path.join(os.path.dirname(sys.executable), "memwatch")
        if os.path.exists(script):
            return [_shortest(script)]
    return [_shortest(sys.executable), "-m", "memwatch"]


def _shortest(program: str) -> str:
    """Return the name of a program if the shell finds the same program by this name; else its path."""
    name = os.path.basename(program)
    found = shutil.which(name)
    if found is not None and os.path.exists(program) and os.path.samefile(found, program):
        return name
    return program or "memwatch"


def command_line(*words: str | os.PathLike[str]) -> str:
    """Return the words of a command as one line, quoted for a shell.

    Control characters, which could change the terminal, become escapes in `$'...'`.
    """
    return " ".join(_quoted(os.fspath(word)) for word in words)


def _quoted(word: str) -> str:
    if not UNPRINTABLE.search(word):
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    shown = UNPRINTABLE.sub(
        lambda match: "".join(f"\\x{byte:02x}" for byte in os.fsencode(match[0])), escaped
    )
    return f"$'{shown}'"
