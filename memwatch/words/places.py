"""Write a place in a source file as a reader can click on it."""

from __future__ import annotations

import functools
import os
import re
import sys
from pathlib import Path, PurePath
from typing import Final

IN_LIBRARY: Final = "{own}, in {package} ({file})"
"""The program's own line, and the library that does the work."""
CELL: Final = "{cell}, line {line}"
"""A line of a notebook's cell, which IPython calls `Cell In[3]`."""
FORMER_MODULE: Final = "{name} (former)"
"""The name of a module that was removed from its parent or replaced."""
_PATH_AND_LINE: Final = re.compile(r"(?<![\w.])(?:/[^\s/():]+)+:\d+")
_PACKAGES: Final = ("site-packages", "dist-packages")


def current_folder() -> str:
    """Return the working directory; empty if the program has deleted it, as a test with a folder of its own may do."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def place(file: str | None, line: int | None) -> str:
    """Return ``file.py:12``, the file relative to the current directory where it lies inside; a cell by its name."""
    if file is None:
        return "?"
    cell = cell_name(file)
    if cell:
        return CELL.format(cell=cell, line=line) if line else cell
    try:
        shown = str(Path(file).resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        shown = file
    return f"{shown}:{line}" if line else shown


def split_site(site: str) -> tuple[str, int]:
    """Return the file and the line of a `file:line`; the whole text and 0 if it has no line."""
    file, _, line = site.rpartition(":")
    return (file, int(line)) if file and line.isdecimal() else (site, 0)


def place_in_file(site: str) -> str:
    """Return `file.py:12` for a path and a line, without the folders. A notebook's cell has its name in IPython."""
    return PurePath(short_place(site)).name


def short_place(site: str) -> str:
    """Return a `file:line` as a person says it: the capture has the whole path.

    Args:
        site: `/home/me/train.py:12`.

    Returns:
        A file of the current folder relative to it, a package's file from the package on, a cell of this notebook as
        IPython calls it (`Cell In[3], line 4`), and any other file without its folders.
    """
    file, _, line = site.rpartition(":")
    cell = cell_name(file)  # its number changes when the same cell runs again
    return CELL.format(cell=cell, line=line) if cell else _short_path(site, current_folder())


def short_places(text: str) -> str:
    """Return a text in which each absolute path with a line is written as `short_place` does."""
    return _PATH_AND_LINE.sub(lambda match: short_place(match[0]), text)


@functools.lru_cache(maxsize=4096)
def _short_path(site: str, folder: str) -> str:
    path = PurePath(site)
    if not path.is_absolute():
        return site
    if folder and path.is_relative_to(folder):
        return str(path.relative_to(folder))
    at = _package_at(path)
    return path.name if at is None else str(PurePath(*path.parts[at:]))


def cell_name(file: str) -> str:
    """Return what the running IPython calls a cell, given the name it compiled the cell by; empty for other files."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    format_name = getattr(getattr(shell, "compile", None), "format_code_name", None)  # of IPython 8 and later
    named = None if format_name is None else format_name(file)
    return " ".join(named) if named else ""


def _package_at(path: PurePath) -> int | None:
    """Return the position of an installed package among the parts of a path; None for other files."""
    return next((at + 1 for at, part in enumerate(path.parts[:-1]) if part in _PACKAGES), None)


def short_own_place(line: str, own_line: str) -> str:
    """Return `own_place` with short places."""
    return own_place(line, short_place(own_line)) if own_line not in ("", line) else short_place(line)


def own_place_in_file(line: str, own_line: str) -> str:
    """Return `own_place` with the program's own line without its folders."""
    return own_place(line, place_in_file(own_line)) if own_line not in ("", line) else place_in_file(line)


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
    at = _package_at(path)
    package = path.parent.name if at is None else path.parts[at].partition(".")[0]
    return IN_LIBRARY.format(own=own_line, package=package, file=path.name)
