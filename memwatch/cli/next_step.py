"""The exact command to type next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys

from memwatch.text import UNPRINTABLE


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
