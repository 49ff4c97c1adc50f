"""Check the files of results before the first test, and write them at the end of the session.

A mistyped command must not destroy a file, or waste a whole session. For example, `pytest --memwatch-json test_a.py`
lacks the path of the results, so the test file is taken for it. So memwatch replaces a file only if it holds results
that memwatch wrote.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, NamedTuple

import pytest

from memwatch.errors import MemwatchError
from memwatch.output_files import OutputError, check_outputs, write_whole
from memwatch.signal_handlers import suppress
from memwatch.text import JsonError, read_json, visible

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Output(NamedTuple):
    """A file that the session writes at its end.

    Attributes:
        option: the command-line option that names the file, such as `--memwatch-json`.
        path: the path of the file.
        file_format: the value of the key `format` in the file.
    """

    option: str
    path: Path
    file_format: str


def check_before_tests(outputs: Sequence[Output]) -> None:
    """Raise if a file cannot be written at the end of the session, or would replace a file of the user.

    Raises:
        pytest.UsageError: its message is one line with the option, the path and the next step.
    """
    taken: dict[str, str] = {}
    for output in outputs:
        _check(output, taken)


def _check(output: Output, taken: dict[str, str]) -> None:
    """Check one file. `taken` maps the real path of each file checked so far to its option."""
    option, path, file_format = output
    try:
        other = taken.setdefault(os.path.realpath(path), option)
        if other != option:
            raise OutputError(f"{path} is also the file of {other}; choose another name")
        _refuse_other_content(path, file_format)
        if path.parent.is_dir():  # otherwise `write_output` makes the folder later
            check_outputs([path], force=True)
        _check_folder(path)
    except (MemwatchError, OSError) as error:
        raise pytest.UsageError(visible(f"{option}: {_reason(error, path)}")) from error


def write_output(path: Path, text: str, file_format: str) -> None:
    """Write a file, and make the folders above it. Replace an existing file only if it holds the same format.

    Raises:
        OutputError: the file cannot be written, or a test has put another file there.
    """
    try:
        _refuse_other_content(path, file_format)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text, force=True)
    except OSError as error:
        raise OutputError(_reason(error, path)) from error


def _refuse_other_content(path: Path, file_format: str) -> None:
    if path.is_file() and not _has_format(path, file_format):
        raise OutputError(
            f"{path} exists, and memwatch did not write it (its content has no format {file_format!r}); "
            "name another file, or remove this one"
        )


def _has_format(path: Path, file_format: str) -> bool:
    with path.open("rb") as file:
        start = file.read(64).lstrip()
        if not start.startswith(b"{"):  # not an object of JSON, so skip the rest, which may be large
            return False
        file.seek(0)
        try:
            data = read_json(file.read())
        except (JsonError, UnicodeDecodeError):
            return False
    return isinstance(data, dict) and data.get("format") == file_format


def _check_folder(path: Path) -> None:
    """Raise if no file can be created in the folder of a path, or in the closest folder above it that exists."""
    folder = next((each for each in path.parents if os.path.lexists(each)), path.parent)
    if not folder.is_dir():
        raise OutputError(f"cannot write {path}: {folder} is not a directory; name a file elsewhere")
    # Create a file to find out. For root, os.access returns True even in /proc and on read-only disks.
    probe = folder / f".memwatch-{secrets.token_hex(8)}.part"
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    finally:
        with suppress(OSError):
            probe.unlink()


def _reason(error: MemwatchError | OSError, path: Path) -> str:
    if isinstance(error, OSError):
        return f"cannot write {path}: {error.strerror or error}; name a file elsewhere"
    return str(error)
