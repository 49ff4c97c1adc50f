"""Compile memwatch's C++ parts (the recorder and the planner) for your torch.

This needs a C++ compiler and the headers of Python, and takes about a minute. Without the compiled recorder, memwatch
records the same data in Python, which is slower. The planner's part needs only the compiler and takes some seconds. If
you skip this step, the first plan that needs it compiles it.

    memwatch build
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.cli.output import emit

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""


def execute(options: argparse.Namespace) -> int:
    """Compile what is not there yet, and print where the libraries lie; return 0."""
    from memwatch.planner.kernels import compile_kernels
    from memwatch.profile import build_recorder

    try:
        _report(*compile_kernels())
    finally:  # one may be built where the other cannot
        _report(*build_recorder())
    return 0


def _report(path: Path, built: bool) -> None:
    emit(f"{'built' if built else 'already built:'} {path}\n")
