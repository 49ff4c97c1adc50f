"""Source text of the program's own lines, read when the page is written.

Only Python files, and only those not changed since the run: a capture may name any file of the machine that
opens it, and a line of a file edited since would be the wrong one.
"""

from __future__ import annotations

import linecache
import os
import stat
from typing import Final

LINE_CHARACTERS: Final = 200


class CodeReader:
    """Gives source lines of files that are as they were when the run started."""

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._trusted: dict[str, bool] = {}

    def line(self, file: str, number: int) -> str:
        """Give one line without its indentation, empty if it cannot be trusted or read."""
        if file not in self._trusted:
            self._trusted[file] = self._is_unchanged(file)
        return linecache.getline(file, number).strip()[:LINE_CHARACTERS] if self._trusted[file] else ""

    def _is_unchanged(self, file: str) -> bool:
        try:
            status = os.stat(file)
        except (OSError, ValueError):  # not there, or no path at all
            return False
        is_python = file.endswith((".py", ".pyw")) and stat.S_ISREG(status.st_mode)
        if is_python:
            linecache.checkcache(file)
        return is_python and status.st_mtime <= self._started_s
