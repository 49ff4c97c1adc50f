"""Checks on the files that verbs write: an existing file is replaced only on request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.errors import MemwatchError

if TYPE_CHECKING:
    from pathlib import Path


class OverwriteError(MemwatchError):
    """A file cannot be written: it exists and may not be replaced, or its folder does not exist."""


def make_room(path: Path, *, force: bool) -> None:
    """Raise if a file cannot be written. Verbs call it first, so that a long run does not fail at its end.

    Args:
        path: the file.
        force: whether an existing file may be replaced.

    Raises:
        OverwriteError: the file exists and `force` is not set, or the path can hold no file.
    """
    if path.is_dir():
        raise OverwriteError(f"{path} is a directory; name a file")
    if path.exists() and not force:
        raise OverwriteError(f"{path} exists; choose another name with -o, or replace it with -f")
    if not path.parent.is_dir():
        raise OverwriteError(f"cannot write {path}: {path.parent} is not a directory; create it first")
