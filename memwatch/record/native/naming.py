"""The name of the recorder's library and its compiler flags, for `library` and `wheels/build.py`.

This file must not import torch: the process that builds the wheels lacks it.
"""

from __future__ import annotations

import hashlib
import pathlib
from typing import Final

NAME: Final = "_recorder"
SOURCES: Final = pathlib.Path(__file__).parent / "src"
FLAGS: Final = ("-O2", "-g0", "-std=c++20", "-fvisibility=hidden")


def digest(torch: str, git_version: str, suffix: str, sources: pathlib.Path = SOURCES) -> str:
    """Return a digest of everything that a library is made from.

    Args:
        torch: torch's version.
        git_version: the commit that this torch was built from.
        suffix: the ending of compiled modules, which contains Python's ABI.
        sources: the folder of the sources.
    """
    content = hashlib.sha256(f"{torch} {git_version} {suffix} {FLAGS}".encode())
    for source in sorted(sources.iterdir()):
        content.update(source.read_bytes())
    return content.hexdigest()[:16]


def file_name(torch: str, git_version: str, python: str, suffix: str, sources: pathlib.Path = SOURCES) -> str:
    """Return the name of the library for one torch, one Python (such as cp311) and one state of the sources."""
    return f"{NAME}-torch{torch}-{python}-{digest(torch, git_version, suffix, sources)}{suffix}"
