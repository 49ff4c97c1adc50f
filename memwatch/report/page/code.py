"""Source text of the program's own lines, read when the page is written.

Only Python files and cells of this notebook are read: a capture from elsewhere may name any file of this machine, and
none of its secrets must get into a page. Files changed since the run are not read, because their lines may have moved.
"""

from __future__ import annotations

import linecache
import os
import stat
from typing import Final

from memwatch.words.places import cell_name

LINE_CHARACTERS: Final = 200


class CodeReader:
    """Reads source lines of files that have not changed since the run started."""

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._trusted: dict[str, bool] = {}

    def line(self, file: str, number: int) -> str:
        """Return one line without its indentation, or empty text if the file changed or cannot be read."""
        return self.indented(file, number).strip()

    def indented(self, file: str, number: int) -> str:
        """Return one line as it is written, or empty text if the file changed or cannot be read."""
        if file not in self._trusted:
            # IPython keeps the text of each cell of this session, under a name that changes with the text
            self._trusted[file] = bool(cell_name(file)) or self._is_unchanged(file)
        if not self._trusted[file]:
            return ""
        return linecache.getline(file, number).expandtabs(4).rstrip()[:LINE_CHARACTERS]

    def _is_unchanged(self, file: str) -> bool:
        try:
            status = os.stat(file)
        except (OSError, ValueError):  # the file does not exist, or the name is not a path
            return False
        is_python = file.endswith((".py", ".pyw")) and stat.S_ISREG(status.st_mode)
        if is_python:
            linecache.checkcache(file)
        return is_python and status.st_mtime <= self._started_s
