"""Name the exact command to type next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys


def memwatch_command() -> list[str]:
    """Give the words that start memwatch again from here, as this process was started."""
    started = sys.argv[0]
    if os.path.basename(started) == "__main__.py":
        return [_shortest(sys.executable), "-m", "memwatch"]
    return [_shortest(started)]


def _shortest(program: str) -> str:
    """Give the bare name of a program where the shell finds just it, else its path."""
    name = os.path.basename(program)
    found = shutil.which(name)
    if found is not None and os.path.exists(program) and os.path.samefile(found, program):
        return name
    return program or "memwatch"


def command_line(*words: str | os.PathLike[str]) -> str:
    """Join the words of a command as a shell takes them."""
    return shlex.join(os.fspath(word) for word in words)
