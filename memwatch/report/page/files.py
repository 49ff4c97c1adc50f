"""Write a page to a file, whole or not at all; an existing file is replaced only on request."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from memwatch.errors import MemwatchError


class ReportError(MemwatchError):
    """A report cannot be written to the path that was given."""


def refuse_existing(target: Path, *, force: bool) -> None:
    """Raise `ReportError` if the file exists and may not be replaced."""
    if target.is_dir():
        raise ReportError(f"{str(target)!r} is a directory; name a file in it")
    if target.exists() and not force:
        raise ReportError(
            f"{str(target)!r} exists; choose another name, or pass force=True (-f) to replace it"
        )


def write_whole(target: Path, text: str, *, force: bool = False) -> None:
    """Write a file so that readers see all of it or nothing: a new file beside it is written, then renamed.

    Args:
        target: the file.
        text: its text; written as UTF-8, with escapes for characters that cannot be encoded.
        force: whether an existing file may be replaced.

    Raises:
        ReportError: the file exists and `force` is not set, or its folder cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.", suffix=".part")
    except OSError as error:
        raise ReportError(
            f"cannot write {str(target)!r}: {error.strerror}; name a file in a folder you can write"
        ) from error
    part = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o666 & ~_umask())
        if force:
            part.replace(target)
        else:
            _publish_new(part, target)
    except OSError as error:  # as where the disk is full
        raise ReportError(
            f"cannot write {str(target)!r}: {error.strerror}; make room, or name another folder"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _publish_new(part: Path, target: Path) -> None:
    # a link fails if the target has appeared in the meantime; a rename would silently replace it
    try:
        os.link(part, target)
    except FileExistsError:
        refuse_existing(target, force=False)
        raise
    except OSError:  # a file system without hard links
        part.replace(target)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
