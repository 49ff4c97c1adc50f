"""The files that verbs write: never over another without being told to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.errors import MemwatchError

if TYPE_CHECKING:
    from pathlib import Path


class OverwriteError(MemwatchError):
    """A file that is there and may not be replaced."""


def make_room(path: Path, *, force: bool) -> None:
    """See that a file may be written.

    Args:
        path: the file.
        force: whether it may be replaced.

    Raises:
        OverwriteError: it is there and may not be replaced, or is no file that can be.
    """
    if path.is_dir():
        raise OverwriteError(f"{path} is a directory; name a file")
    if path.exists() and not force:
        raise OverwriteError(f"{path} exists; choose another name with -o, or replace it with -f")
    if not path.parent.is_dir():
        raise OverwriteError(f"cannot write {path}: {path.parent} is not a directory; create it first")
