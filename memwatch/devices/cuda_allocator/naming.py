"""How the library of the stand-in driver is named and compiled: shared by `library` and by `wheels/build.py`."""

from __future__ import annotations

import hashlib
import pathlib
import platform
from typing import Final

SOURCES: Final = pathlib.Path(__file__).parent / "src"
# one library serves all versions of torch and CUDA: it links neither, and its name contains no version
FLAGS: Final = ("-O2", "-g0", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden")
FILES: Final = ("driver.cpp", "replay.cpp")


def file_name() -> str:
    """Return the name of the library for this machine and these sources."""
    digest = hashlib.sha256(repr(FLAGS).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    return f"_cuda_driver-{platform.machine()}-{digest.hexdigest()[:16]}.so"
