"""The HTML page of a failing test: its peak and its leaks."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from memwatch.leaks import Leak
    from memwatch.reading import Reading

_LONGEST = 80


def page_path(folder: Path, nodeid: str) -> Path:
    """Return the path of a test's page: readable, of bounded length, and different for different tests."""
    words = re.sub(r"[^A-Za-z0-9_.-]+", "-", nodeid.rpartition("/")[2]).strip("-.")
    digest = hashlib.sha256(nodeid.encode("utf-8", "backslashreplace")).hexdigest()[:8]
    return folder / f"{words[:_LONGEST]}-{digest}.html"


def write_page(folder: Path, nodeid: str, reading: Reading | None, leaks: Sequence[Leak]) -> Path:
    """Write the page of a test and return its path.

    Args:
        folder: the folder for pages; it is made if it is missing.
        nodeid: the test.
        reading: the profile of its body, None if it was not measured.
        leaks: its leaks.
    """
    from memwatch.report import html, leak_page

    folder.mkdir(parents=True, exist_ok=True)
    path = page_path(folder, nodeid)
    if reading is None:
        return leak_page(leaks, path, title=nodeid, force=True)
    return html(reading, path, leaks=leaks, title=nodeid, force=True)
