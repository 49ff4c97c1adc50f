"""Pages to share: every path becomes a number, source text and command line are left out."""

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
        "device",
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
"""What a page without sources still says about the run."""


class PathHider:
    """Rewrites texts so that no path known to the capture, and no absolute path, is left in them."""

    def __init__(self, files: Iterable[str]) -> None:
        known = sorted({file for file in files if file}, key=lambda file: (-len(file), file))
        self._alias = {file: f"file-{number}" for number, file in enumerate(sorted(known), start=1)}
        # the longest file first, or a file whose name begins another would leave the rest of that one behind
        self._known = re.compile("|".join(re.escape(file) for file in known)) if known else None

    def __call__(self, text: str) -> str:
        """Rewrite one text."""
        if self._known is not None:
            text = self._known.sub(lambda match: self._alias[match[0]], text)
        return ABSOLUTE_PATH.sub("(path)", text)


def file_of(line: str) -> str:
    """Give the file of a `file:line`."""
    match = LINE.match(line)
    return match[1] if match else line
