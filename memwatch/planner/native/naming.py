"""How the planner's library is named, and how it is compiled: shared by `library` and by `wheels/build.py`."""

from __future__ import annotations

import functools
import hashlib
import pathlib
import platform
from typing import Final

SOURCES: Final = pathlib.Path(__file__).parent / "src"
# no fused multiply-add: every machine shall compute the same numbers
FLAGS: Final = ("-O2", "-g0", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off")


def file_name(sources: pathlib.Path = SOURCES) -> str:
    """Return the name of the library for this machine and these sources."""
    return f"_planner-{platform.machine()}-{_digest(sources)}.so"


@functools.cache
def _digest(sources: pathlib.Path) -> str:
    digest = hashlib.sha256(repr(FLAGS).encode())
    for source in sorted(sources.iterdir()):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
