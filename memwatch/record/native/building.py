"""build_recorder(): compile the native recorder for the torch that is installed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.record.native import library

if TYPE_CHECKING:
    import pathlib


def build_recorder() -> tuple[pathlib.Path, bool]:
    """Compile the native recorder, unless it is there already.

    Returns:
        The library, and whether it was compiled now.

    Raises:
        MemwatchError: it could not be compiled; the Python recorder is used then.
    """
    if library.is_built():
        return library.path(), False
    return library.build(), True
