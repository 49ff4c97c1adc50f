"""Follow a page of documentation: write its files, run its commands, compare their output."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import memwatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import CompletedProcess

_BLOCK: Final = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.M | re.S)
_DURATION: Final = re.compile(r"\b\d[\d.]* ?(?:ms|s|min)\b")
_COLUMNS: Final = "80"
_PROGRAMS: Final = {
    "memwatch": f"""
import sys
from memwatch.cli import main
sys.argv[0] = {str(Path(memwatch.__file__).with_name("__main__.py"))!r}
sys.exit(main())
""",
    "python": """
import pathlib
import sys
del sys.argv[0]
exec(compile(pathlib.Path(sys.argv[0]).read_text(), pathlib.Path(sys.argv[0]).absolute(), "exec"))
""",
    "pytest": """
import os
import sys
import pytest
os.environ.pop("CI", None)  # with it, pytest does not shorten the last lines to the width of the screen
sys.exit(pytest.main([*sys.argv[1:], "-p", "no:cacheprovider"]))
""",
}
"""The code that runs a command in a forked process."""


@dataclass(frozen=True)
class Command:
    """A command of a page, and the output that the page shows."""

    words: str
    shown: str


def has_programs(page: Path) -> bool:
    """Return True for a page that has files to write and commands to run."""
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return any(title for _, title, _ in blocks) and any(language == "console" for language, _, _ in blocks)


def follow(
    page: Path, folder: Path, run: Callable[..., CompletedProcess[str]]
) -> list[tuple[Command, CompletedProcess[str]]]:
    """Follow a page in a folder; return each command with its result.

    Args:
        page: the page.
        folder: an empty folder; the commands run there.
        run: runs code with arguments in a fresh process (`fresh_python`).
    """
    done = []
    for language, title, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if title and language == "diff":
            _mend(folder / title, text)
        elif title:
            (folder / title).write_text(text, encoding="utf-8")
        elif language == "console":
            done += [(command, _run(command.words, run)) for command in _commands(text)]
    return done


def _commands(text: str) -> list[Command]:
    parts = re.split(r"^\$ (.*)\n", text, flags=re.M)[1:]
    return [Command(words, shown) for words, shown in zip(parts[::2], parts[1::2], strict=True)]


def _run(words: str, run: Callable[..., CompletedProcess[str]]) -> CompletedProcess[str]:
    program, *arguments = shlex.split(words)
    return run(_PROGRAMS[program], *arguments, COLUMNS=_COLUMNS)


def _mend(file: Path, text: str) -> None:
    """Apply a diff to a file: lines with `-` are replaced by lines with `+`."""
    lines = text.splitlines(keepends=True)
    old, new = ("".join(line[1:] for line in lines if line[0] in (sign, " ")) for sign in "-+")
    before = file.read_text(encoding="utf-8")
    assert before.count(old) == 1, old
    file.write_text(before.replace(old, new), encoding="utf-8")


def pattern_of(shown: str) -> re.Pattern[str]:
    """Return the pattern for an output: a line `...` means any lines, `[...]` the rest of a line, `T` a time."""
    return re.compile("".join(map(_pattern_of_line, shown.splitlines())))


def _pattern_of_line(line: str) -> str:
    if line == "...":
        return r"(?:.*\n)*?"
    beginning, is_cut, _ = without_times(line).partition("[...]")
    return f"{re.escape(beginning)}{'.*' if is_cut else ''}\n"


def without_times(text: str) -> str:
    """Return text with each duration as `T`, and without blanks at the ends of lines."""
    return "\n".join(_DURATION.sub("T", line).rstrip() for line in text.split("\n"))
