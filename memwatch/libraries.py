"""memwatch's compiled libraries: the names of their files and the flags of the compiler.

The modules that load a library and `wheels/build.py` share this file. It must not import torch or memwatch. The
process that builds the wheels has no torch, and it loads this file by its path.
"""

from __future__ import annotations

import hashlib
import pathlib
import platform
from typing import Final

_HERE: Final = pathlib.Path(__file__).parent


class Library:
    """The sources of a compiled library, and how to compile and name it.

    Args:
        stem: the first word of its file name.
        sources: the folder of its sources.
        flags: flags of the compiler.
        linked: the libraries of torch that it is linked with.
    """

    def __init__(
        self, stem: str, sources: pathlib.Path, flags: tuple[str, ...], linked: tuple[str, ...] = ()
    ) -> None:
        self.stem = stem
        self.sources = sources
        self.flags = flags
        self.linked = linked

    def digest(self, *built_for: str, sources: pathlib.Path | None = None) -> str:
        """Return a digest of the sources, the flags, and the versions that the library is built for.

        Args:
            built_for: versions of torch and Python, if the library works with these only.
            sources: the folder of the sources, by default the library's own.
        """
        content = hashlib.sha256(" ".join([*built_for, repr(self.flags)]).encode())
        for source in sorted((sources or self.sources).iterdir()):
            content.update(source.read_bytes())
        return content.hexdigest()[:16]

    def file_name(self, sources: pathlib.Path | None = None) -> str:
        """Return the file name of a library that works with every torch, on machines of this architecture."""
        return f"{self.stem}-{platform.machine()}-{self.digest(sources=sources)}.so"


DRIVER: Final = Library(
    "_cuda_driver",
    _HERE / "devices" / "cuda_allocator" / "src",
    ("-O2", "-g0", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden"),
)
"""The stand-in for CUDA's driver, on which torch's CUDA allocator runs without a GPU. It is not linked with torch or
CUDA, so its file name has no version."""
DEVICE: Final = Library(
    "_device",
    _HERE / "devices" / "pretended" / "src",
    ("-O1", "-g0", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden"),
    linked=("c10", "torch_cpu"),
)
"""The pretended CUDA device."""
KERNELS: Final = Library(
    "_planner",
    _HERE / "planner" / "native" / "src",
    # without fused multiply-add, every machine computes the same numbers
    ("-O2", "-g0", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"),
)
"""The planner's kernels."""
RECORDER: Final = Library(
    "_recorder", _HERE / "record" / "native" / "src", ("-O2", "-g0", "-std=c++20", "-fvisibility=hidden")
)
"""The native recorder."""
SAMPLER: Final = Library(
    "_malloc_sampler",
    _HERE / "monitor" / "src",
    (
        "-O2", "-g0", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti",
        "-Wl,--as-needed",
    ),
)  # fmt: skip
"""The sampler of malloc. With `--as-needed` it does not load the C++ library. The program may bring a newer one."""


def device_file_name(torch: str, git_version: str) -> str:
    """Return the file name of the pretended device for one torch and the architecture of this machine.

    Args:
        torch: torch's version.
        git_version: the commit that this torch was built from.
    """
    return f"{DEVICE.stem}-torch{torch}-{platform.machine()}-{DEVICE.digest(torch, git_version)}.so"


def recorder_file_name(
    torch: str, git_version: str, python: str, suffix: str, sources: pathlib.Path | None = None
) -> str:
    """Return the file name of the native recorder for one torch and one Python.

    Args:
        torch: torch's version.
        git_version: the commit that this torch was built from.
        python: Python's version, such as cp311.
        suffix: the end of the file name of a compiled module, which contains Python's ABI.
        sources: the folder of the sources, by default the recorder's own.
    """
    digest = RECORDER.digest(torch, git_version, suffix, sources=sources)
    return f"{RECORDER.stem}-torch{torch}-{python}-{digest}{suffix}"
