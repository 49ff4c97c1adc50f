"""Write results to standard output and messages to standard error."""

from __future__ import annotations

import os
import sys


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
    sys.stderr.write(f"memwatch: {text}\n")
