"""How the recorder's library is named, and how it is compiled: shared by `library` and by `wheels/build.py`.

Nothing here imports torch: the wheels are built without one.
"""

from __future__ import annotations

import hashlib
import pathlib
from typing import Final

NAME: Final = "_recorder"
SOURCES: Final = pathlib.Path(__file__).parent / "src"
FLAGS: Final = ("-O2", "-g0", "-std=c++20", "-fvisibility=hidden")


def digest(torch: str, git_version: str, suffix: str, sources: pathlib.Path = SOURCES) -> str:
    """Return what a library was made from, as a few characters.

    Args:
        torch: torch's version.
        git_version: the commit that this torch was built from.
        suffix: the ending of compiled modules, which names the interface of Python that they need.
        sources: the folder of the sources.
    """
    content = hashlib.sha256(f"{torch} {git_version} {suffix} {FLAGS}".encode())
    for source in sorted(sources.iterdir()):
        content.update(source.read_bytes())
    return content.hexdigest()[:16]


def file_name(torch: str, git_version: str, python: str, suffix: str, sources: pathlib.Path = SOURCES) -> str:
    """Return the name of the library for one torch, one Python (such as cp311) and one state of the sources."""
    return f"{NAME}-torch{torch}-{python}-{digest(torch, git_version, suffix, sources)}{suffix}"


def release_of(torch: str) -> str:
    """Return the release of a torch, by which a library in a wheel is named: one serves the CPU and the CUDA builds.

    They are built from one commit, which the digest holds, and the recorder uses nothing that only one of them has.
    """
    return torch.split("+", maxsplit=1)[0]
