"""How the library of a pretended CUDA device is named and compiled: shared by `library` and by `wheels/build.py`.

This file must not import torch: the process that builds the wheels lacks it.
"""

from __future__ import annotations

import hashlib
import pathlib
import platform
from typing import Final

SOURCES: Final = pathlib.Path(__file__).parent / "src"
FLAGS: Final = ("-O1", "-g0", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden")
LIBRARIES: Final = ("c10", "torch_cpu")
"""The libraries of torch that it is linked with."""


def file_name(torch: str, git_version: str) -> str:
    """Return the name of the library for this machine, one torch, and one state of the source."""
    digest = hashlib.sha256(f"{torch} {git_version} {FLAGS}".encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    return f"_device-torch{torch}-{platform.machine()}-{digest.hexdigest()[:16]}.so"
