"""Find and build the stand-in driver: see `src/driver.cpp`. It is compiled in two seconds when it is first needed."""

from __future__ import annotations

import pathlib
import subprocess
import tempfile
from typing import Final

from memwatch import build_cache
from memwatch.devices.cuda_allocator.naming import FILES, FLAGS, SOURCES, file_name
from memwatch.errors import MemwatchError

BUILT: Final = pathlib.Path(__file__).parent / "built"
"""The folder of the package where a wheel has the library; it is not there in a checkout."""
_WHAT: Final = "the stand-in for CUDA's driver"
_FALLBACK: Final = "reserved bytes are those of memwatch's model of the allocator"
_LINE_CHARS: Final = 200
"""Characters of the compiler's first error line that a message shows. A guess."""


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
    compiler = build_cache.compiler(_WHAT, _FALLBACK)
    build_cache.require_writable(_WHAT, _FALLBACK)
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder, file.name)
        command = [compiler, *FLAGS, *(str(SOURCES / name) for name in FILES), "-ldl", "-o", str(made)]
        child = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)  # noqa: S603  # our own command
        if child.returncode:
            lines = (line for line in child.stderr.splitlines() if "error:" in line)
            said = next(lines, str(child.returncode))[:_LINE_CHARS]
            raise MemwatchError(f"{_WHAT} was not built: {said}; {_FALLBACK}")
        build_cache.put(made, file)
    return file, True
