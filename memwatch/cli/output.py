"""Write results to standard output and messages to standard error."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from memwatch.text import visible

if TYPE_CHECKING:
    import argparse


def emit(text: str) -> None:
    """Write text to standard output; drop it where standard output is closed or its reader left (`| head`)."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # the interpreter flushes standard output once more at its end, which must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Write a line to standard error, so that standard output holds results and nothing else."""
    sys.stderr.write(f"memwatch: {visible(text)}\n")


def emit_path(path: str | os.PathLike[str]) -> None:
    """Write the path of a file to standard output: as it is for a program, and safe to print for a terminal."""
    text = os.fspath(path)
    emit(f"{visible(text) if sys.stdout is not None and sys.stdout.isatty() else text}\n")


def add_json(parser: argparse._ActionsContainer) -> None:
    """Add the option `--json`; docs/json.md has the fields."""
    parser.add_argument("--json", action="store_true", help="print JSON; sizes in bytes")


def emit_json(record: Any) -> None:
    """Write a record to standard output as indented JSON."""
    emit(json.dumps(record, indent=2) + "\n")
