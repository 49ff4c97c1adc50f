"""Find, build and load the few lines of C++ that a torch without CUDA lacks: see `src/device.cpp`.

The library serves one torch and one state of its source, which its name holds. It is compiled in some seconds by the
first estimate on a machine, and lies in the user's cache.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import pathlib
import platform
import subprocess
import tempfile
from typing import Final

import torch

from memwatch import build_cache
from memwatch.errors import MemwatchError
from memwatch.progress import working

SOURCE: Final = pathlib.Path(__file__).parent / "src" / "device.cpp"
_TORCH: Final = pathlib.Path(torch.__file__).parent
_FLAGS: Final = ("-O1", "-g0", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden")
_WHAT: Final = "the library by which this torch knows CUDA"
_FALLBACK: Final = "tensors cannot be moved to CUDA without it"
_LINE_CHARS: Final = 200
"""Characters of the compiler's first error line that a message shows. A guess."""


def path() -> pathlib.Path:
    """Return the file that holds, or would hold, the library for this torch."""
    content = f"{torch.__version__} {torch.version.git_version} {_FLAGS}".encode() + SOURCE.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:16]
    return build_cache.folder() / f"_device-torch{torch.__version__}-{platform.machine()}-{digest}.so"


@functools.cache
def load_or_build() -> tuple[ctypes.CDLL | None, str]:
    """Return the library, and compile it first if necessary. Or return None and a sentence with the reason."""
    try:
        file = path()
        if not build_cache.is_usable(file):
            with working("memwatch estimate"):
                _build(file)
        return ctypes.CDLL(str(file)), ""
    except (MemwatchError, OSError) as error:
        return None, str(error)


def _build(file: pathlib.Path) -> None:
    """Compile the library to a file, which is replaced whole.

    Raises:
        MemwatchError: the compiler is missing, the cache cannot be written, or the source does not compile.
    """
    compiler = build_cache.compiler(_WHAT, _FALLBACK)
    build_cache.require_writable(_WHAT, _FALLBACK)
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    libraries = (f"-L{_TORCH / 'lib'}", "-lc10", "-ltorch_cpu")
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder, file.name)
        command = [
            compiler,
            *_FLAGS,
            abi,
            f"-I{_TORCH / 'include'}",
            str(SOURCE),
            *libraries,
            "-o",
            str(made),
        ]
        child = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)  # noqa: S603  # our own command
        if child.returncode:
            said = next(
                (line for line in child.stderr.splitlines() if "error:" in line), str(child.returncode)
            )
            raise MemwatchError(f"{_WHAT} was not built: {said[:_LINE_CHARS]}; {_FALLBACK}")
        build_cache.put(made, file)
