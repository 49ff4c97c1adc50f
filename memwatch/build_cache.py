"""Where compiled libraries lie: a folder of the user's, shared by every checkout and environment of theirs."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import tempfile
from typing import Final

from memwatch.errors import MemwatchError

_COMPILERS: Final = ("c++", "g++", "clang++")
VARIABLE: Final = "MEMWATCH_CACHE"
"""The environment variable that names another folder, as where the home is read-only or many users share one build."""


def folder() -> pathlib.Path:
    """Return the folder, which may not exist yet: `$MEMWATCH_CACHE`, or `memwatch` in the user's cache folder."""
    chosen = os.environ.get(VARIABLE)
    return pathlib.Path(chosen).absolute() if chosen else _cache_of_user() / "memwatch"


def _cache_of_user() -> pathlib.Path:
    """Return the folder for cached files by the rules of the platform: on Linux those of the XDG Base Directories."""
    if sys.platform == "darwin":
        return pathlib.Path(_home(), "Library", "Caches")
    named = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():  # the rules say to ignore a relative one
        return named
    return pathlib.Path(_home(), ".cache")


def _home() -> str:
    """Return the user's home; where there is none, a path that cannot be written, never one in the current folder."""
    home = os.path.expanduser("~")  # without a home the "~" stays as it is
    return home if os.path.isabs(home) else "/nonexistent"


def compiler(what: str, until_then: str) -> str:
    """Return the C++ compiler: the one that `CXX` names, or the first that is there.

    Args:
        what: what shall be compiled, for the message.
        until_then: what holds without it, for the message.

    Raises:
        MemwatchError: there is none.
    """
    named = os.environ.get("CXX")
    for name in (named,) if named else _COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    raise MemwatchError(
        f"{what} was not built: there is no C++ compiler. Install one (on Debian: apt-get install g++), or name yours "
        f"in the environment variable CXX; {until_then}"
    )


def require_writable(what: str, until_then: str) -> None:
    """Make the folder, and write a file in it and remove that again.

    Args:
        what: what shall be put there, for the message.
        until_then: what is used without it, for the message.

    Raises:
        MemwatchError: it cannot be written; says where it is and how to name another.
    """
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder()):
            pass
    except OSError as error:
        raise MemwatchError(
            f"{what} was not built: {folder()} cannot be written ({error.strerror or error}). "
            f"Set {VARIABLE} to a folder that can; {until_then}"
        ) from error
