"""Write a place in a source file as a reader can click on it."""

from __future__ import annotations

from pathlib import Path


def place(file: str | None, line: int | None) -> str:
    """Return ``file.py:12``, the file relative to the current directory where it lies inside."""
    if file is None:
        return "?"
    try:
        shown = str(Path(file).resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        shown = file
    return f"{shown}:{line}" if line else shown
