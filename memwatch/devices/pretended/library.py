"""Find, build and load the few lines of C++ that a torch without CUDA lacks: see `src/device.cpp`.

The library serves one torch and one state of its source, which its name holds. A wheel has one for each release of
torch. Otherwise the first estimate on a machine compiles it in some seconds, and it lies in the user's cache.
"""

from __future__ import annotations

import ctypes
import functools
import pathlib
from typing import Final

import torch

from memwatch import build_cache
from memwatch.devices.pretended.naming import FLAGS, LIBRARIES, SOURCES, file_name
from memwatch.errors import MemwatchError
from memwatch.progress import working

BUILT: Final = pathlib.Path(__file__).parent / "built"
"""The folder with the libraries of a wheel. A checkout does not have it."""
_TORCH: Final = pathlib.Path(torch.__file__).parent
_WHAT: Final = "the library by which this torch knows CUDA"
_FALLBACK: Final = "tensors cannot be moved to CUDA without it"


def path() -> pathlib.Path:
    """Return the file that holds, or would hold, the library for this torch."""
    name = wheel_name()
    in_cache = file_name(torch.__version__, str(torch.version.git_version))
    return BUILT / name if (BUILT / name).exists() else build_cache.folder() / in_cache


def wheel_name() -> str:
    """Return the name that the library for this torch has in a wheel."""
    return file_name(build_cache.release_of(torch.__version__), str(torch.version.git_version))


def build_device() -> tuple[pathlib.Path, bool]:
    """Compile the library if it does not exist yet. Return it, and whether it was compiled now.

    Raises:
        MemwatchError: the compiler is missing, the cache cannot be written, or the source does not compile.
    """
    file = path()
    if file.parent == BUILT or build_cache.is_usable(file):
        return file, False
    torchs = (
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-I{_TORCH / 'include'}",
        f"-L{_TORCH / 'lib'}",
    )
    sources = map(str, sorted(SOURCES.glob("*.cpp")))
    libraries = (f"-l{name}" for name in LIBRARIES)
    with working("memwatch estimate"):
        build_cache.compile_to(file, [*FLAGS, *torchs, *sources, *libraries], _WHAT, _FALLBACK)
    return file, True


@functools.cache
def load_or_build() -> tuple[ctypes.CDLL | None, str]:
    """Return the library, and compile it first if necessary. Or return None and a sentence with the reason."""
    try:
        return ctypes.CDLL(str(build_device()[0])), ""
    except (MemwatchError, OSError) as error:
        return None, str(error)
