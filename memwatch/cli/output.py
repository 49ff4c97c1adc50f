"""Write results to standard output; a reader that has seen enough and left is no error."""

from __future__ import annotations

import os
import sys


def emit(text: str) -> None:
    """Write text to standard output; where it is closed or its reader is gone (`| head`), nowhere."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # the interpreter flushes standard output once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Write a line about what was done to standard error, where it is in nobody's way."""
    sys.stderr.write(f"memwatch: {text}\n")
