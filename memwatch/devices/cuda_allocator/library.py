"""Find and build the stand-in driver: see `src/driver.cpp`. It is compiled in two seconds when it is first needed."""

from __future__ import annotations

import pathlib
from typing import Final

from memwatch import build_cache
from memwatch.devices.cuda_allocator.naming import FILES, FLAGS, SOURCES, file_name

BUILT: Final = pathlib.Path(__file__).parent / "built"
"""The folder of the package where a wheel has the library; it is not there in a checkout."""
_WHAT: Final = "the stand-in for CUDA's driver"
_FALLBACK: Final = "reserved bytes are those of memwatch's model of the allocator"


def path() -> pathlib.Path:
    """Return the file that holds, or would hold, the library."""
    name = file_name()
    return BUILT / name if (BUILT / name).exists() else build_cache.folder() / name


def build_driver() -> tuple[pathlib.Path, bool]:
    """Compile the library if it does not exist yet. Return it, and whether it was compiled now.

    Raises:
        MemwatchError: a compiler or a place to write is missing, or the compiler refused the source.
    """
    file = path()
    if file.parent == BUILT or build_cache.is_usable(file):
        return file, False
    sources = [str(SOURCES / name) for name in FILES]
    build_cache.compile_to(file, [*FLAGS, *sources, "-ldl"], _WHAT, _FALLBACK)
    return file, True
