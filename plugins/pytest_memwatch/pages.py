"""One HTML page for a failing test: its peak, and its leaks among the findings."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from memwatch.leaks import Leak
    from memwatch.reading import Reading

_LONGEST = 80


def page_path(folder: Path, nodeid: str) -> Path:
    """Name the page of a test: readable, of bounded length, and different for different tests."""
    words = re.sub(r"[^A-Za-z0-9_.-]+", "-", nodeid.rpartition("/")[2]).strip("-.")
    digest = hashlib.sha256(nodeid.encode("utf-8", "backslashreplace")).hexdigest()[:8]
    return folder / f"{words[:_LONGEST]}-{digest}.html"


@dataclass(frozen=True)
class PageFinding:
    """A leak in the form of the page's findings."""

    kind: str
    nbytes: int
    holder: str
    site: str
    advice: str
    path: tuple[str, ...]


def write_page(folder: Path, nodeid: str, reading: Reading, leaks: Sequence[Leak]) -> Path:
    """Write the page of a test.

    Args:
        folder: made if it is missing.
        nodeid: the test.
        reading: the profile of its body.
        leaks: what it leaked.

    Returns:
        The page.
    """
    from memwatch.reading import Reading as PlainReading
    from memwatch.report import html

    class ReadingWithLeaks(PlainReading):
        @property
        def findings(self) -> list[Any]:
            return [*(_finding(leak) for leak in leaks), *super().findings]

    folder.mkdir(parents=True, exist_ok=True)
    return html(ReadingWithLeaks(reading.capture), page_path(folder, nodeid), force=True)


def _finding(leak: Leak) -> PageFinding:
    return PageFinding(
        f"leak: {leak.kind}", leak.nbytes, leak.holder, leak.site or "", leak.advice, leak.path
    )
