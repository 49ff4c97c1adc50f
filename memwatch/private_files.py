"""Let a program write and delete files, and leave the files of its user as they are.

`memwatch fit` runs the beginning of a script many times, and `memwatch estimate` runs it once. The script may save
checkpoints, delete old ones and add lines to logs, and it may write from Python, C++, Rust or a process of its own.
Only the kernel sees all of that. So this process gets from the kernel (Linux) its own view of the file systems. In
this view an overlay lies on each folder. The program finds its files there, and all its changes stay in the overlay.
A new overlay for each run lets each run begin with the files of the user.

Where the kernel refuses overlays, as it does in most containers, Landlock denies the process every change of a file.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import shutil
import signal
import stat
import struct
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from memwatch.errors import MemwatchError
from memwatch.output_files import OutputError, whole_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# linux/sched.h, linux/mount.h and linux/landlock.h
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_MNT_DETACH: Final = 2  # linux/fs.h
_PR_SET_NO_NEW_PRIVS: Final = 38  # linux/prctl.h
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_GET_VERSION, _LANDLOCK_PATH_BENEATH = 1, 1
_LANDLOCK_WITH_TRUNCATE: Final = 3
"""The first version that denies `truncate`."""
_LANDLOCK_WRITES: Final = sum(1 << bit for bit in (1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14))
"""Write, remove, make, rename and truncate."""

_LEFT_ALONE: Final = ("/proc", "/sys", "/dev", "/run")
"""These folders show the kernel and other processes.

They have no files of the user, and programs need them as they are.
"""

_CACHES: Final = {"XDG_CACHE_HOME": "~/.cache", "HF_HOME": None, "TORCH_HOME": None}
"""Variables that name folders for downloads. Each run would load a model again if its download were dropped."""


class PrivateFilesError(MemwatchError):
    """The program cannot be kept from changing files."""


class PrivateFiles:
    """Keeps the changes of files away from the user, from its creation until the process ends.

    Create it before the process starts a thread: the kernel gives a view to the threads that start later.

    Attributes:
        dropped: files that the program wrote or deleted in overlays; `renew` adds the files of the last run.
        refuses: True if some change of a file is an error in the program, because an overlay was not possible.
        folder: a folder for results that processes outside see too; it is removed when this process ends.

    Raises:
        PrivateFilesError: neither overlays nor Landlock are possible here.
    """

    def __init__(self) -> None:
        self.dropped: set[str] = set()
        self.refuses = False
        self._folder = os.getcwd()
        self._root_flags = _flags_of("/")
        self._mounted: list[str] = []
        self._layer: dict[str, str] = {}  # target: the folder with the changes below it
        self._layers = 0
        if not sys.platform.startswith("linux"):
            raise PrivateFilesError("a private view of your files needs Linux")
        if len(os.listdir("/proc/self/task")) > 1:
            raise PrivateFilesError("this process has started threads already")
        self._caches = _cache_folders()
        self._bases = _folders_for_changes()
        if not self._bases:
            raise PrivateFilesError(f"no temporary folder can be made in {tempfile.gettempdir()}")
        self.folder = Path(self._bases[0], "results")
        self.folder.mkdir()
        self._write_end = _remove_at_end(self._bases)
        try:
            _try_in_a_child(_enter_namespace)
            self._options = _enter_namespace()
            for base in self._bases:  # of a mount of its own, so that it stays writable when `/` is not
                _mount(base, base, None, _MS_BIND)
            self._base_files = [os.open(base, os.O_PATH) for base in self._bases]
            self._cover()
        except OSError as error:
            self._uncover()
            self._refuse_writes(error)

    def renew(self) -> None:
        """Drop all changes since the last call, so that the next run begins with the user's files.

        The current folder becomes the same as when this object was made.
        """
        if not self._mounted:  # Landlock is in force until the process ends
            return
        self._uncover()
        for target, changed in self._layer.items():
            self.dropped.update(_changes(Path(changed), Path(target)))
        for base in self._base_files:
            _remove_tree(f"/proc/self/fd/{base}/{self._layers}")
        self._layer.clear()
        self._cover()

    def drop_changes(self) -> list[str]:
        """Drop all changes; return the files that the program wrote or deleted, with the files in its folder first."""
        self.renew()
        return sorted(self.dropped, key=lambda path: (not path.startswith(self._folder), path))

    def _cover(self) -> None:
        """Put an overlay on each folder."""
        self._layers += 1
        kept, places = {}, {}
        for place, is_written in [
            *_places(besides=self._bases).items(),
            *((cache, True) for cache in self._caches),
        ]:
            with contextlib.suppress(OSError):  # who may not enter a folder cannot write there either
                kept[place] = os.open(place, os.O_PATH)
                places[place] = is_written
        try:
            for number, (place, is_written) in enumerate(places.items()):
                below, is_cache = f"/proc/self/fd/{kept[place]}", place in self._caches
                is_private = is_written and not is_cache
                if not (is_private and os.path.isdir(place) and self._overlay(number, place, below)):
                    _mount(below, place, None, _MS_BIND | _MS_REC)
                    self._mounted.append(place)
                    if is_private:
                        _make_read_only(place)
                        # a folder that this process may not enter is safe anyway
                        self.refuses |= os.access(place, os.X_OK)
            # an overlay lies on this folder too
            _mount(
                f"/proc/self/fd/{self._base_files[0]}/{self.folder.name}", str(self.folder), None, _MS_BIND
            )
            self._mounted.append(str(self.folder))
            _make_read_only("/")
        finally:
            for file in kept.values():
                os.close(file)
        os.chdir(self._folder)  # the former current folder lies below the overlay now

    def _overlay(self, number: int, place: str, below: str) -> bool:
        """Put an overlay on one folder; return False if its file system takes none."""
        # the kernel refuses to keep the changes of a folder within it
        bases = zip(self._base_files, self._bases, strict=True)
        base = next((file for file, path in bases if not _is_below(path, place)), None)
        if base is None:
            return False
        layer = f"/proc/self/fd/{base}/{self._layers}/{number}"
        for part in ("changed", "work"):
            os.makedirs(f"{layer}/{part}")
        changed, work = (os.open(f"{layer}/{part}", os.O_PATH) for part in ("changed", "work"))
        # paths of open files: a comma or a colon in a path would end an option
        options = ",".join(
            [
                *self._options,
                f"lowerdir={below}",
                *(
                    f"{name}=/proc/self/fd/{file}"
                    for name, file in (("upperdir", changed), ("workdir", work))
                ),
            ]
        )
        try:
            shutil.copystat(place, f"{layer}/changed")
            owner = os.stat(place)
            with contextlib.suppress(OSError):
                os.chown(f"{layer}/changed", owner.st_uid, owner.st_gid)
            _mount("memwatch", place, "overlay", 0, options)
        except OSError:
            return False
        finally:
            os.close(changed)
            os.close(work)
        self._mounted.append(place)
        self._layer[place] = f"{layer}/changed"
        return True

    def _uncover(self) -> None:
        """Take every overlay off."""
        if self._mounted:
            with contextlib.suppress(OSError):
                _mount(None, "/", None, _MS_REMOUNT | _MS_BIND | self._root_flags)
        for place in reversed(self._mounted):
            _libc().umount2(os.fsencode(place), _MNT_DETACH)
        self._mounted.clear()

    def _refuse_writes(self, why: OSError) -> None:
        """Deny every change of a file, except in caches and in the folders of the system."""
        version = _libc().syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_GET_VERSION)
        if version < _LANDLOCK_WITH_TRUNCATE:
            raise PrivateFilesError(
                f"the kernel allows neither overlays ({why.strerror}) nor Landlock"
            ) from why
        attributes = struct.pack("=Q", _LANDLOCK_WRITES)
        rules = _checked(_libc().syscall(_LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0))
        for folder in [*_LEFT_ALONE, *self._caches, *self._bases]:
            with contextlib.suppress(OSError):
                file = os.open(folder, os.O_PATH)
                rule = struct.pack("=Qi", _LANDLOCK_WRITES, file)
                _checked(_libc().syscall(_LANDLOCK_ADD_RULE, rules, _LANDLOCK_PATH_BENEATH, rule, 0))
                os.close(file)
        _checked(_libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _checked(_libc().syscall(_LANDLOCK_RESTRICT_SELF, rules, 0))
        os.close(rules)
        # a program needs temporary files most
        os.environ["TMPDIR"] = tempfile.tempdir = self._bases[0]
        self.refuses = True


class FilesOutside:
    """Copies results to where the user wants them, by a process that keeps the view of all files.

    Create it before `PrivateFiles`.
    """

    def __init__(self) -> None:
        read_end, self._requests = os.pipe()
        answers, write_end = os.pipe()
        child = os.fork()
        if child:
            os.close(read_end)
            os.close(write_end)
            os.waitpid(child, 0)
            self._answers = os.fdopen(answers)
            return
        try:
            os.close(self._requests)
            _become_daemon()
            with os.fdopen(read_end) as requests:
                for request in requests:
                    os.write(write_end, f"{json.dumps(_copied(*json.loads(request)))}\n".encode())
        finally:
            os._exit(0)

    def copy(self, source: Path, target: Path, *, force: bool) -> None:
        """Copy a file that lies in `PrivateFiles.folder`.

        Args:
            source: the file.
            target: its copy, which readers see whole or not at all.
            force: whether an existing file may be replaced.

        Raises:
            OutputError: the copy cannot be written.
        """
        os.write(self._requests, f"{json.dumps([str(source), str(target), force])}\n".encode())
        sentence = json.loads(self._answers.readline() or '"the process that writes files has ended"')
        if sentence:
            raise OutputError(sentence)


def _copied(source: str, target: str, force: bool) -> str:
    """Copy a file; return why that failed, or nothing."""
    try:
        with whole_file(Path(target), force=force) as part:
            shutil.copyfile(source, part)
    except (MemwatchError, OSError) as error:
        return str(error)
    return ""


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, path: str | None = None) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return result


def _mount(source: str | None, place: str, kind: str | None, flags: int, options: str | None = None) -> None:
    source_, kind_, options_ = (
        None if text is None else os.fsencode(text) for text in (source, kind, options)
    )
    _checked(_libc().mount(source_, os.fsencode(place), kind_, ctypes.c_ulong(flags), options_), place)


def _flags_of(place: str) -> int:
    """Return the flags of a mount; the kernel refuses to drop them in a namespace of a user."""
    return os.statvfs(place).f_flag & 0xF  # read-only, nosuid, nodev, noexec: the same bits as of mount


def _make_read_only(place: str) -> None:
    _mount(None, place, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _flags_of(place))


def _enter_namespace() -> list[str]:
    """Give this process its own view of the mounts; return the options that overlays need in it."""
    user, group = os.getuid(), os.getgid()
    options = ["redirect_dir=on"]  # lets the program rename folders of the user's
    libc = _libc()
    if libc.unshare(_CLONE_NEWNS) < 0:  # only root may; in a namespace of users of its own, everybody may
        _checked(libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        options = ["userxattr"]  # renames no folder: the program gets the error of a move to another disk
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    return options


def _try_in_a_child(function: Callable[[], object]) -> None:
    """Run a function in a process of its own, and raise its error here.

    A kernel may allow a namespace of users and then refuse the table of its users, as Ubuntu 24.04 does. A process in
    such a namespace can create no file.
    """
    child = os.fork()
    if not child:
        number = errno.EPERM
        try:
            function()
            number = 0
        except OSError as error:
            number = error.errno or number
        finally:
            os._exit(number)
    number = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if number:
        raise OSError(number, os.strerror(number))


def _places(besides: list[str]) -> dict[str, bool]:
    """Return the folders and files to cover, outermost first, and whether this process may write there.

    They are the folders in `/` and whatever is mounted below them: an overlay shows nothing that is mounted.
    """
    left_alone = [*_LEFT_ALONE, *besides]
    found = {}
    for entry in os.scandir("/"):
        if entry.is_dir(follow_symlinks=False):
            found[entry.path] = True
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        place, options = fields.split()[4:6]
        place = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), place)  # spaces and the like
        found[place] = "rw" in options.split(",") and "rw" in rest.split()[2].split(",")
    return {
        place: found[place]
        for place in sorted(found)
        if place != "/" and not any(_is_below(place, folder) for folder in left_alone)
    }


def _is_below(path: str, folder: str) -> bool:
    """Return True for a folder and everything in it."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _cache_folders() -> list[str]:
    """Return the folders for downloads, which stay as they are."""
    named = [os.environ.get(variable) or default for variable, default in _CACHES.items()]
    paths = [os.path.realpath(os.path.expanduser(path)) for path in named if path]
    found: list[str] = []
    for path in sorted(filter(os.path.isdir, paths)):
        if not any(_is_below(path, other) for other in found):
            found.append(path)
    return found


def _folders_for_changes() -> list[str]:
    """Make the folders that hold the changes: two, for none may lie within the folder it belongs to."""
    found: list[str] = []
    for folder in (tempfile.gettempdir(), "/var/tmp", "/dev/shm"):  # noqa: S108  # mkdtemp makes a private folder
        top = os.path.realpath(folder).split("/")[1]
        if len(found) < 2 and all(top != base.split("/")[1] for base in found):
            with contextlib.suppress(OSError):
                found.append(os.path.realpath(tempfile.mkdtemp(prefix="memwatch-fit-", dir=folder)))
    return found


def _remove_at_end(folders: list[str]) -> int:
    """Have folders removed when this process ends, however it ends; return a file to keep open.

    A process of its own waits for that. It starts before the overlays exist, so it sees the real folders.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child:
        os.close(read_end)
        os.waitpid(child, 0)
        return write_end
    try:
        os.close(write_end)
        _become_daemon()
        os.read(read_end, 1)
        for folder in folders:
            _remove_tree(folder)
    finally:
        os._exit(0)


def _become_daemon() -> None:
    """Go on in a process that belongs to no terminal, reader or parent; end this one."""
    os.setsid()  # a Ctrl-C in the terminal is not for this process
    if os.fork():
        os._exit(0)  # a program that waits for its children must not wait for this one
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for file in range(3):  # a reader of memwatch's output must not wait for this process
        os.dup2(nowhere, file)


def _remove_tree(folder: str) -> None:
    """Remove a folder with all that is in it; an overlay makes folders that even their owner may not enter."""
    for path, folders, _ in os.walk(folder):
        for name in folders:
            if not os.path.islink(f"{path}/{name}"):
                with contextlib.suppress(OSError):
                    os.chmod(f"{path}/{name}", stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)


def _changes(changed: Path, target: Path) -> Iterator[str]:
    """Name the files below a folder that an overlay replaces or hides, without the compiled modules of Python."""
    for folder, folders, files in os.walk(changed):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in files:
            yield str(target / Path(folder).relative_to(changed) / name)
