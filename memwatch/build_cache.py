"""Where compiled libraries lie: a folder of the user's, shared by every checkout and environment of theirs.

A library is code. So it is loaded only if this user and root alone can have written it, or put it there.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Final

from memwatch.errors import MemwatchError
from memwatch.output_files import whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_COMPILERS: Final = ("c++", "g++", "clang++")
VARIABLE: Final = "MEMWATCH_CACHE"
"""The environment variable with another folder, for a read-only home or a build that many users share."""
_LINE_CHARS: Final = 200
"""Characters of the compiler's first error line that a message shows. A guess."""
_ADVICE_LATER: Final = f"set {VARIABLE} to a folder of your own"
_ADVICE: Final = f"remove it, or {_ADVICE_LATER}"


def folder() -> pathlib.Path:
    """Return the folder, which may not exist yet: `$MEMWATCH_CACHE`, or `memwatch` in the user's cache folder."""
    chosen = os.environ.get(VARIABLE)
    return pathlib.Path(chosen).absolute() if chosen else _cache_of_user() / "memwatch"


def release_of(torch: str) -> str:
    """Return the release of a torch. A wheel names its libraries by it, and one serves CPU and CUDA builds.

    Both builds come from one commit, which is part of a library's digest. The libraries only use functions that both
    have.
    """
    return torch.split("+", maxsplit=1)[0]


def reason_to_distrust(path: pathlib.Path) -> str:
    """Return the reason why another user may have written code in a file or folder. Empty if it is safe.

    The file and every folder above it must belong to this user or to root. Only they may write to them. Folders such
    as `/tmp` are allowed, because there users can rename only their own files.
    """
    if os.name != "posix":
        return ""
    user = os.geteuid()
    for each in _passed(path):
        try:
            found = os.lstat(each)
        except OSError:  # for a missing file, its folder decides
            continue
        if found.st_uid not in (0, user):
            return f"{each} belongs to another user (uid {found.st_uid}); {_ADVICE}"
        if stat.S_ISLNK(found.st_mode):
            continue  # its mode says nothing
        is_shared = bool(found.st_mode & stat.S_IWOTH) or (
            bool(found.st_mode & stat.S_IWGRP) and not _is_private(found.st_gid, found.st_uid)
        )
        is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if is_shared and not is_sticky:
            return (
                f"other users may write to {each} (mode {stat.S_IMODE(found.st_mode):o}); "
                f"type `chmod go-w {each}` if it is yours alone, or {_ADVICE_LATER}"
            )
    return ""


def _passed(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield a path and all that the kernel passes on the way to its file: folders, links, and the way of each link."""
    waiting, seen = [pathlib.Path(os.path.realpath(path)), pathlib.Path(os.path.abspath(path))], set()
    while waiting:
        current = waiting.pop()
        for each in (current, *current.parents):
            if each in seen:
                continue
            seen.add(each)
            yield each
            with contextlib.suppress(OSError):  # no link
                folder = os.path.realpath(each.parent)
                waiting.append(pathlib.Path(os.path.normpath(os.path.join(folder, os.readlink(each)))))


def is_usable(file: pathlib.Path) -> bool:
    """Return whether a library of the folder exists and other users cannot have written it."""
    return file.exists() and not reason_to_distrust(file)


def _is_private(group: int, user: int) -> bool:
    """Return whether a group has one member, as where each user has a group of the same name and a umask of 002."""
    import grp
    import pwd

    try:
        owner, members = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    return (
        owner.pw_gid == group and owner.pw_name == members.gr_name and set(members.gr_mem) <= {owner.pw_name}
    )


def _make(path: pathlib.Path) -> None:
    """Make a folder, and those above it that are missing, so that no other user may write to them."""
    for each in reversed((path, *path.parents)):
        if not each.is_dir():
            with contextlib.suppress(FileExistsError):  # another process has made it in this moment
                each.mkdir(mode=0o755)
    path.mkdir(exist_ok=True)  # raises where there is a file of this name


def put(made: pathlib.Path, file: pathlib.Path) -> None:
    """Copy a library to its name atomically, so that a process never loads half of it. Links are not followed.

    Raises:
        OutputError: the disk is full.
    """
    with whole_file(file, force=True) as part:
        part.write_bytes(made.read_bytes())
        part.chmod(0o755)


def _cache_of_user() -> pathlib.Path:
    """Return the folder for cached files by the rules of the platform: on Linux, the XDG Base Directories."""
    if sys.platform == "darwin":
        return pathlib.Path(_home(), "Library", "Caches")
    named = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():  # the rules say to ignore a relative one
        return named
    return pathlib.Path(_home(), ".cache")


def _home() -> str:
    """Return the user's home. A user may lack one.

    Then return a path that cannot exist, never a path in the current folder.
    """
    home = os.path.expanduser("~")  # without a home the "~" stays as it is
    return home if os.path.isabs(home) else "/nonexistent"


def compiler(what: str, until_then: str) -> str:
    """Return the C++ compiler: the compiler that `CXX` names, or the first that is there.

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
        MemwatchError: it cannot be written, or others could change what is in it; says where it is and how to name
            another.
    """
    try:
        _make(folder())
        reason = reason_to_distrust(folder())
        if reason:
            raise MemwatchError(f"{what} was not built: {reason}; {until_then}")
        with tempfile.TemporaryFile(dir=folder()):
            pass
    except OSError as error:
        raise MemwatchError(
            f"{what} was not built: {folder()} cannot be written ({error.strerror or error}). "
            f"Set {VARIABLE} to a folder that can; {until_then}"
        ) from error


def compile_to(file: pathlib.Path, arguments: Sequence[str], what: str, until_then: str) -> None:
    """Compile a library that needs neither torch nor Python, and put it in its place.

    Args:
        file: where it belongs.
        arguments: the compiler's flags and sources.
        what: the library, in words.
        until_then: how memwatch goes on without it.

    Raises:
        MemwatchError: a compiler or a place to write is missing, or the compiler refused the source.
    """
    command = compiler(what, until_then)
    require_writable(what, until_then)
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder, file.name)
        child = subprocess.run(  # noqa: S603  # our own command
            [command, *arguments, "-o", str(made)],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if child.returncode:
            lines = (line for line in child.stderr.splitlines() if "error:" in line)
            said = next(lines, str(child.returncode))[:_LINE_CHARS]
            raise MemwatchError(f"{what} was not built: {said}; {until_then}")
        put(made, file)
