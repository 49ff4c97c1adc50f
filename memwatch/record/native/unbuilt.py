"""Whether the native recorder could be built here and is not: worth one line to a user who waits for the other."""

from __future__ import annotations

import os
import pathlib
import shlex
import shutil
import sys
import sysconfig
from typing import Final

from memwatch.record.native import cache, library

REMARK: Final = (
    "the recorder in Python was used, which takes two to five times as long: `memwatch build` compiles the native one, "
    "once for this torch"
)
_told: Final[list[str]] = []


def remark() -> str:
    """Return the line for the user; empty where it is built, cannot be, or is not wanted."""
    return REMARK if library.is_wanted() and not library.is_built() and _could_be_built() else ""


def remark_once() -> str:
    """Return the line the first time that there is one in this process, then nothing."""
    text = "" if _told else remark()
    if text:
        _told.append(text)
    return text


def _could_be_built() -> bool:
    """Return True if what the build needs is there: this Python, its headers, a compiler, and a place to write."""
    header = pathlib.Path(sysconfig.get_paths()["include"]) / "Python.h"
    return sys.version_info >= library.FIRST_PYTHON and header.exists() and _has_compiler() and _may_write()


def _has_compiler() -> bool:
    words = shlex.split(os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++")
    return bool(words) and shutil.which(words[0]) is not None


def _may_write() -> bool:
    """Return True if the cache folder, or the nearest folder above it that exists, may be written."""
    folder = cache.folder()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK)
