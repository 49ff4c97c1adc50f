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
"""Rows of the tables in a summary that shows all tables: as many as the help of `--rows` names as the most."""

# Open the capture that a command reads, and check the files that it will write.
#
# A command replaces an existing file only with `-f`, and never a file that it reads.
_EXISTS: Final = "{} exists; choose another name with -o, or replace it with -f"


def make_room(
    *others: Path | None,
    capture: Path | None = None,
    page: Path | None = None,
    inputs: Iterable[str | os.PathLike[str]] = (),
    force: bool,
) -> None:
    """Raise if an output cannot be written. Every verb calls it first, so that a long run does not fail at its end.

    Args:
        others: the files that the verb writes; None stands for an optional file that the user did not ask for.
        capture: the capture that it writes. It replaces only a capture, so that `-o train.py` never costs a program.
        page: the page that it writes. It replaces only an HTML page.
        inputs: the files that it reads.
        force: whether existing files may be replaced.

    Raises:
        OutputError: a file exists and `force` is False, is an input or another output, or its path cannot hold a file.
    """
    outputs = [path for path in (capture, page, *others) if path is not None]
    check_outputs(outputs, inputs=inputs, force=force, exists=_EXISTS)
    if capture is not None:
        _spare_others(capture, b"SQLite format 3\0", "a capture")
    if page is not None:
        _spare_others(page, b"<!doctype html>", "an HTML page")


def _spare_others(path: Path, begins: bytes, kind: str) -> None:
    """Raise if a file would be replaced that is of another kind. An empty file holds nothing to lose."""
    try:
        with path.open("rb") as file:
            found = file.read(len(begins))
    except OSError:  # missing or unreadable; a dangling link is itself replaced
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
    """Write text to standard output; drop it where standard output is closed or its reader left (`| head`).

    Raises:
        OutputError: standard output cannot be written, as on a full disk.
    """
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # the interpreter flushes standard output once more at its end, which must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise OutputError(
                f"cannot write to standard output: {error.strerror}; send it to a place with room"
            ) from error


def say(text: str) -> None:
    """Write a line to standard error, so that standard output holds results and nothing else."""
    sys.stderr.write(f"memwatch: {visible(text)}\n")


def emit_path(path: str | os.PathLike[str]) -> None:
    """Write the path of a file to standard output: as it is for a program, and safe to print for a terminal."""
    text = os.fspath(path)
    emit(f"{visible(text) if sys.stdout is not None and sys.stdout.isatty() else text}\n")


def add_json(parser: argparse._ActionsContainer) -> None:
    """Add the option `--json`; docs/json.md has the fields."""
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
    """Return the text of a size such as `8GiB`."""
    try:
        parse_bytes(text)
    except SizeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def size_of_device(text: str) -> str:
    """Return the text of a size above 0, or of a device and a size as `cuda:0=8GiB`."""
    if not parse_bytes(size(text.rpartition("=")[2])):
        raise argparse.ArgumentTypeError(f"{text!r} leaves no room for any tensor; give a size above 0")
    return text


def budget(text: str) -> str:
    """Return the text of a size or of a share of a program's peak, such as `60%`."""
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
    """Return the words that start memwatch again, in the way this process was started.

    With `MEMWATCH=1`, memwatch did not start this process. Then it is the memwatch of the same Python.
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
    """Return the bare name of a program where the shell finds this very program by it, else its path."""
    name = os.path.basename(program)
    found = shutil.which(name)
    if found is not None and os.path.exists(program) and os.path.samefile(found, program):
        return name
    return program or "memwatch"


def command_line(*words: str | os.PathLike[str]) -> str:
    """Return the words of a command as one line, quoted for a shell.

    A name may hold characters that would steer the terminal; these are written as the escapes of `$'...'`.
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
