"""Compile what memwatch has in compiled form: the native recorder and the planner's kernels.

The native recorder is compiled for the installed torch. It needs a C++ compiler and the headers of Python, and
takes about a minute. Without it the Python recorder records the same rows, in more time. The planner's kernels
need the compiler alone and take some seconds; without this step the first plan that needs them compiles them.

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
