"""Estimate which native libraries have allocated the live memory of malloc.

The sampler is a library (`src/malloc_sampler.cpp`) that records some of the allocations. Only the dynamic linker can
load it, when a program starts. Either you name it in `LD_PRELOAD`, or you set `MEMWATCH=monitor,native=1`, which starts
the program again with it. It samples nothing until a monitor calls `start`, so older memory has no known library.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from memwatch import build_cache
from memwatch.errors import MemwatchError
from memwatch.libraries import SAMPLER
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from memwatch.monitor.mappings import Mapping

BUILT: Final = pathlib.Path(__file__).parent / "built"
"""The folder of the library in a wheel. In a checkout, the library is in the user's cache instead."""
_WHAT: Final = "the sampler of malloc"
_FALLBACK: Final = "the monitor does not name native libraries"
INTERVAL_BYTES: Final = 128 << 10
"""Allocated bytes from one sample to the next, on average. `reports/monitor.md` has the cost."""
PRELOAD: Final = "LD_PRELOAD"
_RESTARTED: Final = "MEMWATCH_RESTARTED"
"""The environment variable of a program that was started again: its process number, and its own `LD_PRELOAD`.

For example, process 4242 has the value `4242:/usr/lib/other.so`.
"""
_CALLERS: Final = 6  # return addresses in a sample: kCallers in the source
_REPLACED: Final = ("malloc", "calloc", "realloc", "free")
"""The functions that every other malloc replaces."""
_WITH_SYMBOL: Final = 1  # RTLD_DL_SYMENT of dlfcn.h
_RUNTIME: Final = (
    "libc.so",
    "libstdc++.so",
    "libc++.so",
    "libc++abi.so",
    "libgcc_s.so",
    "ld-linux",
    "ld64.so",
)
"""Beginnings of the names of libraries that allocate for their callers, such as `strdup` and `operator new`."""
_ALLOCATES_TENSORS: Final = "libc10.so"
"""Beginning of the name of torch's library that allocates host tensors."""
_LARGE_BYTES: Final = 64 << 10
"""For a block of this size or more, memwatch counts the bytes in memory. Smaller blocks count as a whole. A guess."""


def path() -> pathlib.Path:
    """Return the path of the library, which may not be compiled yet."""
    name = SAMPLER.file_name()
    return BUILT / name if (BUILT / name).exists() else build_cache.folder() / name


def build_sampler() -> tuple[pathlib.Path, bool]:
    """Compile the library if it does not exist yet. Return it, and whether it was compiled now.

    Raises:
        MemwatchError: a compiler or a place to write is missing, the compiler refused the source, the system has no
            glibc, or the program uses another malloc.
    """
    if reason := _refusal():
        raise MemwatchError(f"{_WHAT} was not built: {reason}; {_FALLBACK}")
    file = path()
    if file.parent == BUILT or build_cache.is_usable(file):
        return file, False
    build_cache.compile_to(
        file, [*SAMPLER.flags, str(SAMPLER.sources / "malloc_sampler.cpp")], _WHAT, _FALLBACK
    )
    return file, True


def _refusal() -> str:
    """Return the reason why this program cannot run with the sampler, which needs glibc's malloc; empty if it can."""
    try:
        glibc, program = ctypes.CDLL("libc.so.6"), ctypes.CDLL(None)
        _address_of(glibc.__libc_memalign)
        found = {name: _address_of(getattr(program, name)) for name in _REPLACED}
        known = [name for name, address in found.items() if not _is_stub(address)]
        is_glibcs = bool(known) and all(found[name] == _address_of(getattr(glibc, name)) for name in known)
    except (OSError, AttributeError, TypeError) as error:
        pass_on(error)
        return "this system has no glibc"
    if not is_glibcs and _library() is None:
        return "the program uses another malloc than glibc's"
    return ""


class _Place(ctypes.Structure):
    """`Dl_info` of glibc."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("file", "base", "name", "address")]


class _Symbol(ctypes.Structure):
    """`Elf64_Sym`."""

    _fields_ = [
        ("name", ctypes.c_uint32),
        ("info", ctypes.c_uint8),
        ("other", ctypes.c_uint8),
        ("section", ctypes.c_uint16),
        ("value", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
    ]


def _is_stub(address: int) -> bool:
    """Return whether the address of a function is a stub in the executable, which jumps to the real function.

    An executable that is linked for a fixed address, such as Debian's Python, has a stub for each function if its code
    uses the address of the function. The dynamic linker then returns the stub as the address of the function. The
    symbol of a stub belongs to no section.
    """
    place, symbol = _Place(), ctypes.POINTER(_Symbol)()
    found = ctypes.CDLL(None).dladdr1(
        ctypes.c_void_p(address), ctypes.byref(place), ctypes.byref(symbol), _WITH_SYMBOL
    )
    return bool(found and symbol and symbol.contents.section == 0)


def restart_with_sampler() -> str:
    """Start this program again with the sampler, before its code runs.

    The process keeps its number, its arguments and its open files. The programs that it starts do not get the sampler.

    Returns:
        "" if the sampler is loaded, which is also the case in the program that was started again; or the reason why the
        program cannot have it. If memwatch starts the program again, the function does not return.
    """
    restarted, _, before = os.environ.pop(_RESTARTED, "").partition(":")
    if restarted == str(os.getpid()):
        if before:
            os.environ[PRELOAD] = before
        else:
            os.environ.pop(PRELOAD, None)
    if _library() is not None:
        return ""
    if restarted == str(os.getpid()):
        return f"{_FALLBACK}, because the dynamic linker did not load {_WHAT}"
    try:
        executable = os.readlink("/proc/self/exe")
        is_alone = len(os.listdir("/proc/self/task")) == 1
        with open("/proc/self/cmdline", "rb") as file:
            arguments = file.read().split(b"\0")[:-1]
    except OSError as error:
        pass_on(error)
        return f"{_FALLBACK}: {error}"
    # A server that embeds Python may have opened its sockets by now, so memwatch must not start it again.
    if not arguments or not is_alone or os.path.realpath(sys.executable) != executable:
        return f"{_FALLBACK}, because this process did not start as Python"
    try:
        library = build_sampler()[0]
    except MemwatchError as error:
        return str(error)
    before = os.environ.get(PRELOAD, "")
    environment = {
        **os.environ,
        PRELOAD: f"{library}:{before}" if before else str(library),
        _RESTARTED: f"{os.getpid()}:{before}",
    }
    try:
        os.execve(executable, arguments, environment)  # noqa: S606  # this very program
    except OSError as error:
        return f"{_FALLBACK}: {error}"


@functools.cache
def _library() -> Any:
    """Return the sampler if the dynamic linker loaded it with the program, else None."""
    try:
        library: Any = ctypes.CDLL(None)
        library.memwatch_malloc_samples.restype = ctypes.c_size_t
        library.memwatch_malloc_samples.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        library.memwatch_malloc_start.argtypes = [ctypes.c_uint64]
        library.memwatch_malloc_start.restype = library.memwatch_malloc_stop.restype = None
        library.memwatch_malloc_lost.restype = ctypes.c_uint64
    except (OSError, AttributeError, TypeError) as error:
        pass_on(error)
        return None
    return library


_lock = threading.Lock()
_users: Final[set[int]] = set()
"""The ids of the monitors that need samples."""


def start(user: object) -> bool:
    """Sample allocations until the monitor calls `stop`. Return False if the program has no sampler."""
    library = _library()
    if library is None:
        return False
    with _lock:
        if not _users:
            library.memwatch_malloc_start(INTERVAL_BYTES)
        _users.add(id(user))
    return True


def stop(user: object) -> None:
    """Stop sampling for a monitor. The sampler stops when no other monitor needs it."""
    with _lock:
        _users.discard(id(user))
        if not _users and (library := _library()) is not None:
            library.memwatch_malloc_stop()


def after_fork() -> None:
    """Stop sampling in a forked child, where no monitor runs."""
    global _lock  # noqa: PLW0603  # another thread of the parent may have held it
    _lock = threading.Lock()
    if _users:
        _users.clear()
        _library().memwatch_malloc_stop()


def is_on() -> bool:
    """Return whether malloc is being sampled."""
    return bool(_users)


_MOST_SAMPLES: Final = 1 << 15  # kBuckets * kSlots in the source


def samples() -> NDArray[np.int64]:
    """Return a row for each live sampled block: its address, its bytes and the return addresses of its callers."""
    import numpy as np

    library = _library()
    if library is None or not is_on():
        return np.empty((0, 2 + _CALLERS), dtype=np.int64)
    found = np.empty((_MOST_SAMPLES, 2 + _CALLERS), dtype=np.int64)
    return found[: library.memwatch_malloc_samples(found.ctypes.data, len(found))]


def bytes_by_library(
    samples: NDArray[np.int64],
    mappings: Sequence[Mapping],
    in_memory: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    is_tensor: Callable[[NDArray[np.int64]], NDArray[np.bool_]],
) -> tuple[dict[str, int], str]:
    """Estimate how many bytes of each library's live blocks are in memory.

    The interpreter, numpy and torch's c10 get no bytes here. They allocate Python objects, arrays and tensors, which
    other rows of the process count, and a sample does not show whether such a row has counted its block.

    Args:
        samples: from :func:`samples`.
        mappings: the mappings of this process, sorted by address.
        in_memory: returns how many bytes of each range of addresses are in memory.
        is_tensor: returns for each address whether the block there belongs to a tensor.

    Returns:
        The bytes by the name of the library, and a note if the sampler had no room for some samples.
    """
    import numpy as np

    if not len(samples):
        return {}, ""
    samples = samples[~is_tensor(samples[:, 0])]
    nbytes = samples[:, 1]
    resident = nbytes.astype(np.float64)
    # The program may not have touched all pages of a large block. Small blocks share pages, which are in memory.
    large = np.flatnonzero(nbytes >= _LARGE_BYTES)
    large = large[np.argsort(samples[large, 0])]
    resident[large] = in_memory(np.stack([samples[large, 0], samples[large, 0] + nbytes[large]], axis=1))
    chunk = np.maximum((nbytes + 8 + 15) // 16 * 16, 32)  # malloc's header and rounding
    resident[nbytes < _LARGE_BYTES] = chunk[nbytes < _LARGE_BYTES]
    chance = -np.expm1(-np.maximum(nbytes, 1) / INTERVAL_BYTES)
    found: dict[str, float] = {}
    for name, estimate in zip(_names(samples[:, 2:], mappings), (resident / chance).tolist(), strict=True):
        if name:
            found[name] = found.get(name, 0.0) + estimate
    lost = int(_library().memwatch_malloc_lost())
    note = (
        f"memwatch had no room for {lost} samples of malloc, so the libraries have too few bytes"
        if lost
        else ""
    )
    return {name: round(estimate) for name, estimate in sorted(found.items())}, note


def _names(callers: NDArray[np.int64], mappings: Sequence[Mapping]) -> list[str]:
    """Return the name of the library that allocated each block.

    It is the library of the innermost caller outside of the libraries that allocate for their callers. The name is
    empty if other rows count the blocks of this library, or if the code of the caller is not in a file.
    """
    import numpy as np

    starts = np.array([mapping.start for mapping in mappings], dtype=np.int64)
    sampler = _path_at(_address_of(_library().memwatch_malloc_samples), mappings)
    with_other_rows = {
        _path_at(_address_of(ctypes.pythonapi.PyMem_RawMalloc), mappings),
        _path_at(id(np.ndarray), mappings),  # numpy's library has its classes in its data
    }
    at = np.searchsorted(starts, callers, side="right") - 1
    names = []
    for row, addresses in zip(at.tolist(), callers.tolist(), strict=True):
        name = ""
        for place, address in zip(row, addresses, strict=True):
            mapping = mappings[place] if place >= 0 and address else None
            if mapping is None or address >= mapping.end or not mapping.path.startswith("/"):
                break  # code that was compiled at run time, or the end of the stack
            file = os.path.basename(mapping.path)
            if mapping.path in with_other_rows or file.startswith(_ALLOCATES_TENSORS):
                break
            if mapping.path != sampler and not file.startswith(_RUNTIME):
                name = file
                break
        names.append(name)
    return names


def _address_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _path_at(address: int, mappings: Sequence[Mapping]) -> str:
    return next((each.path for each in mappings if each.start <= address < each.end), "")
