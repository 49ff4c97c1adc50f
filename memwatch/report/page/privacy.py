"""Pages to share: every path becomes a number; source text and the command line are left out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

ABSOLUTE_PATH: Final = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[/\\](?:[^\s/\\:'\"]+[/\\])+[^\s:'\"]*")
LINE: Final = re.compile(r"(.+):(\d+)\Z", re.DOTALL)
PUBLIC_META: Final = frozenset(
    {
        "allocator",
        "complete",
        "reserved_bytes",
        "end_ns",
        "intercept",
        "memwatch",
        "python",
        "recorder",
        "start_ns",
        "threads",
        "torch",
    }
)
"""Metadata that a page without sources still shows."""


class PathHider:
    """Rewrites texts so that they hold no path of the capture and no absolute path."""

    def __init__(self, files: Iterable[str]) -> None:
        known = sorted({file for file in files if file}, key=lambda file: (-len(file), file))
        self._alias = {file: f"file-{number}" for number, file in enumerate(sorted(known), start=1)}
        # the longest first: `/a/b` would match in `/a/bc.py` and leave the rest of that path in the page
        self._known = re.compile("|".join(re.escape(file) for file in known)) if known else None

    def __call__(self, text: str) -> str:
        """Return a text without paths."""
        if self._known is not None:
            text = self._known.sub(lambda match: self._alias[match[0]], text)
        return ABSOLUTE_PATH.sub("(path)", text)


def file_of(line: str) -> str:
    """Return the file of a `file:line`."""
    match = LINE.match(line)
    return match[1] if match else line
