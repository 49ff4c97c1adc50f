"""Compile memwatch's C++ parts (the recorder, the planner, a stand-in for CUDA's driver and a sampler of malloc).

This needs a C++ compiler and the headers of Python, and takes about a minute. Without the compiled recorder, memwatch
records the same data in Python, which is slower. The other parts need only the compiler and take some seconds. If you
skip this step, the first plan or `memwatch tune` that needs one compiles it.

    memwatch build
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.cli.common import emit

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""


def execute(options: argparse.Namespace) -> int:
    """Compile what is not there yet, and print where the libraries lie; return 0."""
    from memwatch.devices.cuda_allocator.torchs_own import build_driver
    from memwatch.monitor.malloc_sampler import build_sampler
    from memwatch.planner.native.library import build as build_kernels
    from memwatch.profile import build_recorder

    try:
        _report(*build_driver())
        _report(*build_kernels())
        _report(*build_sampler())
    finally:  # one may be built where the other cannot
        _report(*build_recorder())
    return 0


def _report(path: Path, built: bool) -> None:
    emit(f"{'built' if built else 'already built:'} {path}\n")
