"""How the sampler of malloc is named and compiled: shared by `malloc_sampler` and by `wheels/build.py`."""

from __future__ import annotations

import hashlib
import pathlib
import platform
from typing import Final

SOURCES: Final = pathlib.Path(__file__).parent / "src"
FLAGS: Final = (
    "-O2", "-g0", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti",
    "-Wl,--as-needed",
)  # fmt: skip
"""`--as-needed`: the library must not load the C++ library, because the program may bring a newer one."""


def file_name() -> str:
    """Return the name of the library for this machine and these sources."""
    digest = hashlib.sha256(repr(FLAGS).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    return f"_malloc_sampler-{platform.machine()}-{digest.hexdigest()[:16]}.so"
