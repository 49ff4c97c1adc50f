"""Compile the native recorder for the torch that is installed: behind the key it costs half or less.

It needs a C++ compiler and the headers of Python, and takes about a minute. Without it the recorder is
Python, which records the same.

    memwatch build
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.cli.output import emit

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""


def execute(options: argparse.Namespace) -> int:
    """Build the library unless it is there, and print its path; return 0."""
    from memwatch.profile import build_recorder

    path, built = build_recorder()
    emit(f"{'built' if built else 'already built:'} {path}\n")
    return 0
