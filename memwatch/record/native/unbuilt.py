"""Why there is no native recorder here, if something can be done: worth one line to a user who waits for the other."""

from __future__ import annotations

import os
import pathlib
import shlex
import shutil
import sysconfig
from typing import Final

import torch

from memwatch import build_cache
from memwatch.record.native import library

REMARK: Final = (
    "the recorder in Python was used, which takes two to five times as long: `memwatch build` compiles the native one, "
    "once for this torch"
)
_DISTRUSTED: Final = (
    "the native recorder was not loaded, because {reason}. The recorder in Python was used, which takes two to five "
    "times as long"
)
_told: Final[list[str]] = []


def remark() -> str:
    """Return the line for the user; empty where it is built, cannot be, or is not wanted."""
    if not library.is_wanted() or library.is_built():
        return ""
    reason = library.distrust()
    if reason:
        return _DISTRUSTED.format(reason=reason)
    return _of_another_torch() or (REMARK if _could_be_built() else "")


def _of_another_torch() -> str:
    """Return the line for who has a wheel with recorders, none of which serves this torch."""
    wheel = library.of_wheel()
    if not wheel:
        return ""
    advice = "; `memwatch build` compiles one for it" if _could_be_built() else ""
    return (
        f"memwatch was installed with native recorders for torch {', '.join(wheel)}, and none of them loads with this "
        f"torch {torch.__version__}: the recorder in Python was used, which takes two to five times as long{advice}"
    )


def remark_once() -> str:
    """Return the line the first time that there is one in this process, then nothing."""
    text = "" if _told else remark()
    if text:
        _told.append(text)
    return text


def _could_be_built() -> bool:
    """Return True if what the build needs is there: this Python, its headers, a compiler, and a place to write."""
    header = pathlib.Path(sysconfig.get_paths()["include"]) / "Python.h"
    return header.exists() and _has_compiler() and _may_write()


def _has_compiler() -> bool:
    words = shlex.split(os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++")
    return bool(words) and shutil.which(words[0]) is not None


def _may_write() -> bool:
    """Return True if the cache folder, or the nearest folder above it that exists, may be written."""
    folder = build_cache.folder()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK)
