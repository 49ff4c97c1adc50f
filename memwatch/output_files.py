"""Write a file so that nothing else is lost: check its path first, then write it whole or not at all.

A command checks all its outputs with `check_outputs` before it starts any work. `whole_file` writes to a new file in
the same folder and renames it, so that readers see the old file or the new one, and a link is replaced, not followed.
A capture is written while the program runs. It gets its name so too, as soon as it has its empty tables.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

from memwatch.errors import MemwatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_STREAMS: Final = ("standard input", "standard output", "standard error")
_EXISTS: Final = "{} exists; choose another name, or pass force=True (-f) to replace it"
_IS_FOLDER: Final = "{} is a directory; name a file in it"


class OutputError(MemwatchError):
    """A file cannot be written to the path that was given."""


class FileIdentity(NamedTuple):
    """The identity of a file on this machine, whatever its names are."""

    device: int
    inode: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileIdentity:
        """Return the identity of a file from its `stat`."""
        return cls(found.st_dev, found.st_ino)


def identity_of(path: str | os.PathLike[str]) -> FileIdentity | None:
    """Return the identity of the file itself, which may be a link; or None if it does not exist."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return FileIdentity.of(found)


def check_outputs(
    outputs: Sequence[Path],
    *,
    inputs: Iterable[str | os.PathLike[str]] = (),
    force: bool = False,
    exists: str = _EXISTS,
) -> None:
    """Raise if one of the outputs of a command cannot be written, or would replace a file that the command needs.

    Args:
        outputs: the files that the command writes. Where it pipes its standard output into a file, that is one too.
        inputs: the files that it reads. A name that does not exist is ignored.
        force: whether existing files may be replaced.
        exists: the message for a file that exists, with a place for its path.

    Raises:
        OutputError: names the path and the next step.
    """
    taken = {
        _place(path): f"is an input of this command ({os.fspath(path)})"
        for path in inputs
        if os.path.exists(path)
    }
    for number, name in enumerate(_STREAMS):
        with contextlib.suppress(OSError):  # closed
            found = os.fstat(number)
            if stat.S_ISREG(found.st_mode):
                taken[found.st_dev, found.st_ino, ""] = f"is the {name} of this command"
    for path in outputs:
        _check_kind(path, force=force, exists=exists)
        place = _place(path)
        if place in taken:
            raise OutputError(f"{path} {taken[place]}, which it would replace; choose another name")
        taken[place] = f"is another output of this command ({path})"
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise OutputError(f"cannot write {path}: you may not write in {path.parent}; name another folder")


def _place(path: str | os.PathLike[str]) -> tuple[int, int, str]:
    """Return the same value for two paths if both lead to one file, through whatever links, or would once it exists."""
    real = os.path.realpath(path)
    try:
        found = os.stat(real)
    except OSError:
        folder, name = os.path.split(real)
        if not os.path.isdir(folder):  # the end of a link that leads nowhere
            return -1, -1, real
        found = os.stat(folder)
        return found.st_dev, found.st_ino, name
    return found.st_dev, found.st_ino, ""


def _check_kind(path: Path, *, force: bool, exists: str) -> None:
    """Raise if there is anything at a path but a regular file that may be replaced, or a link to one."""
    try:
        if not path.parent.is_dir():
            raise OutputError(
                f"cannot write {path}: {path.parent} is not a directory; create it first, or name a file elsewhere"
            )
        link = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:  # the name is too long, or the folder may not be read
        raise OutputError(f"cannot write {path}: {error.strerror}; choose another name") from error
    try:
        mode = os.stat(path).st_mode
    except OSError:  # a broken link: the link itself would be replaced
        mode = link.st_mode
    if stat.S_ISDIR(mode):
        raise OutputError(_IS_FOLDER.format(path))
    if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        raise OutputError(f"{path} is not a regular file but a device, a pipe or a socket; name a file")
    if not force:
        raise OutputError(exists.format(path))


@contextlib.contextmanager
def whole_file(target: Path, *, force: bool = False, exists: str = _EXISTS) -> Iterator[Path]:
    """Yield a new, empty file in the folder of the target, which gets the target's name if the block succeeds.

    Args:
        target: the file.
        force: whether an existing file may be replaced.
        exists: the message for a file that exists, with a place for its path.

    Raises:
        OutputError: the file exists and `force` is not set, it is no regular file, or its folder cannot be written.
    """
    _check_kind(target, force=force, exists=exists)
    part = target.with_name(f".memwatch-{secrets.token_hex(8)}.part")
    try:
        os.close(_opened_new(part))
    except OSError as error:
        raise OutputError(
            f"cannot write {target}: {error.strerror}; name a file in a folder you can write"
        ) from error
    try:
        yield part
        _publish(part, target, force=force, exists=exists)
    except OSError as error:  # as where the disk is full
        raise OutputError(
            f"cannot write {target}: {error.strerror or error}; make room, or name another folder"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def write_whole(target: Path, content: str | bytes, *, force: bool = False) -> None:
    """Write a file so that readers see all of it or nothing.

    Args:
        target: the file.
        content: its text or bytes; text is written as UTF-8, with escapes for characters that cannot be encoded.
        force: whether an existing file may be replaced.

    Raises:
        OutputError: the file exists and `force` is not set, it is no regular file, or its folder cannot be written.
    """
    with whole_file(target, force=force) as part, part.open("wb") as file:
        file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def remove_if_same(path: Path, identity: FileIdentity) -> None:
    """Remove a file, unless another one has its name by now."""
    if identity_of(path) == identity:
        path.unlink(missing_ok=True)


def _opened_new(path: Path) -> int:
    """Return a descriptor of a new file; fail where there is anything of this name, a link that leads nowhere too."""
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), 0o666)


def _publish(part: Path, target: Path, *, force: bool, exists: str) -> None:
    """Give a finished file its name in one step."""
    _check_kind(target, force=force, exists=exists)
    if force:
        part.replace(target)
        return
    # a link fails if the target has appeared in the meantime; a rename would silently replace it
    try:
        os.link(part, target)
    except FileExistsError as error:
        raise OutputError(exists.format(target)) from error
    except OSError:  # a file system without hard links: take the name first, then fill it
        try:
            os.close(_opened_new(target))
        except FileExistsError as error:
            raise OutputError(exists.format(target)) from error
        part.replace(target)
