"""Follow a page of documentation: write its files, run its commands, compare what they print."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from memwatch.cli.main import main

_BLOCK: Final = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.M | re.S)
_DURATION: Final = re.compile(r"\b\d[\d.]* ?(?:ms|s|min)\b")
WIDTH: Final = "80"


@dataclass(frozen=True)
class Command:
    """A command of a page, and what the page says it prints."""

    words: str
    shown: str


def follow(page: Path, folder: Path, capsys) -> list[tuple[Command, str]]:
    """Do what a page says in a folder; return each command with what it printed."""
    done = []
    for language, title, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if title and language == "diff":
            _mend(folder / title, text)
        elif title:
            (folder / title).write_text(text, encoding="utf-8")
        elif language == "console":
            done += [(command, _run(command.words, folder, capsys)) for command in _commands(text)]
    return done


def _commands(text: str) -> list[Command]:
    parts = re.split(r"^\$ (.*)\n", text, flags=re.M)[1:]
    return [Command(words, shown) for words, shown in zip(parts[::2], parts[1::2], strict=True)]


def _run(words: str, folder: Path, capsys) -> str:
    """Return what a command prints; a program is recorded in a process of its own, where nothing else is alive."""
    program, *arguments = shlex.split(words)
    assert program == "memwatch", words
    if arguments[0] == "run":
        environment = {**os.environ, "COLUMNS": WIDTH, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "memwatch", *arguments]
        return subprocess.run(
            command, cwd=folder, env=environment, check=True, capture_output=True, text=True
        ).stdout
    capsys.readouterr()
    main(arguments)
    return capsys.readouterr().out


def _mend(file: Path, text: str) -> None:
    """Replace the lines of a file that begin with `-` in a diff by those that begin with `+`."""
    lines = text.splitlines(keepends=True)
    old, new = ("".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
    before = file.read_text(encoding="utf-8")
    assert before.count(old) == 1, old
    file.write_text(before.replace(old, new), encoding="utf-8")


def pattern_of(shown: str) -> re.Pattern[str]:
    """Return what output must match: a line `...` stands for any lines, `[...]` for the rest of one, `T` for a time."""
    return re.compile("".join(map(_pattern_of_line, shown.splitlines())))


def _pattern_of_line(line: str) -> str:
    if line == "...":
        return r"(?:.*\n)*?"
    beginning, is_cut, _ = without_times(line).partition("[...]")
    return f"{re.escape(beginning)}{'.*' if is_cut else ''}\n"


def without_times(text: str) -> str:
    """Return text with each duration as `T`, and without blanks at the ends of lines."""
    return "\n".join(_DURATION.sub("T", line).rstrip() for line in text.split("\n"))
