"""Notes on errors of the program: the error itself stays as it is."""

from __future__ import annotations

import sys


def add_note(error: BaseException, text: str) -> None:
    """Have a text shown below the traceback of an error; Python 3.10 shows none, so it is printed there."""
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:
        sys.stderr.write(f"{text}\n")
