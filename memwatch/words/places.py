"""Write a place in a source file as a reader can click on it."""

from __future__ import annotations

import functools
from pathlib import Path, PurePath
from typing import Final

IN_LIBRARY: Final = "{own}, in {package} ({file})"
"""The program's own line, and the library in which the work is done."""
FORMER_MODULE: Final = "{name} (former)"
"""The name of a module that is no part of its parent any more: another has its place, or none."""
_PACKAGES: Final = ("site-packages", "dist-packages")


def place(file: str | None, line: int | None) -> str:
    """Return ``file.py:12``, the file relative to the current directory where it lies inside."""
    if file is None:
        return "?"
    try:
        shown = str(Path(file).resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        shown = file
    return f"{shown}:{line}" if line else shown


def place_in_file(site: str) -> str:
    """Return `file.py:12` of a path and a line, without the folders."""
    return PurePath(site).name


@functools.cache
def own_place(line: str, own_line: str) -> str:
    """Return a `file:line` that the reader can edit: `train.py:40, in transformers (trainer.py:2674)`.

    Args:
        line: the place of the work.
        own_line: the program's own line that led there, empty if there is none.
    """
    if not own_line or own_line == line:
        return line
    path = PurePath(line)
    at = next((at for at, part in enumerate(path.parts[:-1]) if part in _PACKAGES), None)
    package = path.parent.name if at is None else path.parts[at + 1].partition(".")[0]
    return IN_LIBRARY.format(own=own_line, package=package, file=path.name)
