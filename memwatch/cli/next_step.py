"""The exact command to type next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys


def memwatch_command() -> list[str]:
    """Return the words that start memwatch again, in the way this process was started."""
    started = sys.argv[0]
    if os.path.basename(started) == "__main__.py":
        return [_shortest(sys.executable), "-m", "memwatch"]
    return [_shortest(started)]


def _shortest(program: str) -> str:
    """Return the bare name of a program where the shell finds this very program by it, else its path."""
    name = os.path.basename(program)
    found = shutil.which(name)
    if found is not None and os.path.exists(program) and os.path.samefile(found, program):
        return name
    return program or "memwatch"


def command_line(*words: str | os.PathLike[str]) -> str:
    """Return the words of a command as one line, quoted for a shell."""
    return shlex.join(os.fspath(word) for word in words)
