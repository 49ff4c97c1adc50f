"""Find, build and load the planner's kernels.

`prepare` decides whether a search can use the kernels.

The library needs neither torch nor the headers of Python, so one file works with all versions of both on a machine. The
name of the file contains a digest of the sources. The file is in the user's cache, or in the package if a wheel
installed it.
"""

from __future__ import annotations

import ctypes
import functools
import pathlib
import struct
import subprocess
import sys
import tempfile
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch import build_cache
from memwatch.errors import MemwatchError
from memwatch.libraries import KERNELS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.planner.request import Clock


SOURCES: Final = KERNELS.sources
BUILT: Final = pathlib.Path(__file__).parent / "built"
"""The folder of the package into which a wheel puts the library. A checkout does not have it."""
_COMPILE: Final = pathlib.Path(__file__).parent / "compile.py"
_WHAT: Final = "the planner's library"
_FALLBACK: Final = "a simple planner in Python makes the plans"
_LINES_SHOWN: Final = 3
_SILENT_S: Final = 2.0  # seconds of compiling before a line says so; a guess
_SHARE_WAITED: Final = 0.7
"""Share of the time limit that a search waits for the compiler; the planner in Python gets the rest. A guess."""
_lock: Final = threading.Lock()
_file_name: Final = functools.cache(KERNELS.file_name)


def path() -> pathlib.Path:
    """Return the file that holds, or would hold, the library."""
    name = _file_name(SOURCES)
    return BUILT / name if (BUILT / name).exists() else build_cache.folder() / name


@functools.cache
def load(file: pathlib.Path) -> ctypes.CDLL | None:
    """Load a library; return None if the system cannot load it."""
    try:
        return ctypes.CDLL(str(file))
    except OSError:
        return None


def reason_to_distrust() -> str:
    """Return why an existing library may not be loaded; empty if it may, or if there is none."""
    file = path()
    return build_cache.reason_to_distrust(file) if file.parent != BUILT and file.exists() else ""


class Build:
    """A process that compiles the library.

    Raises:
        MemwatchError: a compiler or a folder for the library is missing.
    """

    def __init__(self) -> None:
        compiler = build_cache.compiler(_WHAT, _FALLBACK)
        build_cache.require_writable(_WHAT, _FALLBACK)
        self.file = path()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the compiler runs
        command = [
            sys.executable,
            "-I",
            str(_COMPILE),
            str(self.file),
            compiler,
            *KERNELS.flags,
            str(SOURCES / "kernels.cpp"),
        ]
        self._child = subprocess.Popen(command, stdout=self._said, stderr=self._said)  # noqa: S603  # our own command

    def is_done(self, within_s: float) -> bool:
        """Wait up to `within_s` seconds for the compiler; return True if it has ended.

        Raises:
            MemwatchError: the compiler failed.
        """
        try:
            status = self._child.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        if status:
            self._said.seek(0)
            lines = self._said.read().decode(errors="replace").splitlines()
            said = "; ".join(line.strip() for line in lines[:_LINES_SHOWN])
            raise MemwatchError(f"{_WHAT} was not built: {said or status}; {_FALLBACK}")
        return True


def build() -> tuple[pathlib.Path, bool]:
    """Compile the library, unless it is there already; return it, and whether it was compiled now.

    Raises:
        MemwatchError: it could not be compiled.
    """
    with _lock:
        if path().exists() and not reason_to_distrust():
            return path(), False
        work = Build()
        while not work.is_done(60):
            pass
        return work.file, True


class Loader:
    """The library of this process, and the compiler that runs."""

    def __init__(self) -> None:
        self.library: ctypes.CDLL | None = None
        self._build: Build | None = None
        self._has_failed = False

    def find(self) -> ctypes.CDLL | None:
        """Return the library, or None if it cannot be loaded."""
        if self.library is None:
            file = path()
            self.library = load(file) if file.exists() and not reason_to_distrust() else None
        return self.library

    def prepare(self, clock: Clock) -> bool:
        """See the function `prepare`."""
        if self.find() is None and not self._has_failed:
            try:
                self._compile(clock.share(_SHARE_WAITED))
            except MemwatchError as error:
                self._has_failed = True
                _say(f"{error}; `memwatch build` tries again")
        return self.library is not None

    def _compile(self, clock: Clock) -> None:
        if self._build is None:
            self._build = Build()
        if not self._build.is_done(min(_SILENT_S, clock.left_s())):
            _say("compiling the planner's kernels, once for this machine (`memwatch build` does it ahead)")
            if not self._build.is_done(clock.left_s()):
                return
        self.find()


_loader = Loader()


def prepare(clock: Clock) -> bool:
    """Return True if a search can use the kernels.

    A missing library is compiled, once per machine. The search waits for the compiler for a share of the time that is
    left. If this takes long, a line on standard error says so. Without a compiler, or without enough time, the result
    is False, and the caller plans with `planner.greedy`.
    """
    with _lock:
        return _loader.prepare(clock)


def is_available() -> bool:
    """Return True if the library can be loaded now."""
    return _loader.find() is not None


def loaded() -> ctypes.CDLL:
    """Return the library.

    Raises:
        MemwatchError: the library is not there.
    """
    found = _loader.find()
    if found is None:
        raise MemwatchError(f"{_WHAT} is not there; build it with `memwatch build`")
    return found


def _say(sentence: str) -> None:
    sys.stderr.write(f"memwatch: {sentence}\n")


# Call the kernels, and pass them numbers and arrays.
#
# Each kernel has one function in Python that calls it, beside the named tuple that the kernel reads. Only searches use
# these functions, because they need the library, and a search begins with `prepare`.
_REAL = struct.Struct("<d")
_WORD = struct.Struct("<q")


def words_of(value: Any) -> list[int]:
    """Return a value as C++ reads it: a number is one word, an array its address and size, a tuple its parts.

    The caller keeps the value alive while the words are in use.
    """
    if isinstance(value, tuple):
        return [word for part in value for word in words_of(part)]
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous, "kernels read arrays row after row"
        return [value.__array_interface__["data"][0], value.size]
    if isinstance(value, float):
        return [_WORD.unpack(_REAL.pack(value))[0]]
    return [int(value)]


def call(name: str, *args: Any, returns: type[Any] = ctypes.c_int64) -> Any:
    """Call a kernel. Whole numbers are passed by value, tuples and arrays by a pointer to their words (`words_of`).

    A real number must be in a tuple.

    Raises:
        MemwatchError: the library is not there.
    """
    function = getattr(loaded(), name)
    function.restype = returns
    passed: list[Any] = []
    for value in args:
        if isinstance(value, (tuple, np.ndarray)):
            words = words_of(value)
            passed.append((ctypes.c_int64 * len(words))(*words))
        else:
            passed.append(ctypes.c_int64(int(value)))
    return function(*passed)


def random_state(seed: int) -> NDArray[np.uint64]:
    """Return the state of the kernels' random number generator for a seed."""
    return np.random.default_rng(seed).integers(1, 2**63, size=1, dtype=np.uint64)
