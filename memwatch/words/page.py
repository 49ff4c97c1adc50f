"""The words of the HTML page that its parts share: the names of its sections, and the parts of the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch.words.ways import HEADING

if TYPE_CHECKING:
    from collections.abc import Sequence

SECTIONS: Final = {
    "leaks": "Leaks",
    "findings": "Findings",
    "ways": HEADING,
    "timeline": "Live bytes",
    "icicle": "Parts",
    "tables": "Tables",
    "source": "Your lines",
    "plan": "Plan",
}
"""The name of each section by its id: the navigation shows it, and the heading of the section begins with it."""

LINES_MEANING: Final = (
    "The bytes shown above, by the line of your code that they come from, with the backward of its ops: a gradient "
    "counts for the line of the forward op."
)
"""The sentence above the lines of the program. The summary's heading of its lines (`summary.LINES`) says the same."""

SMALL_PARTS: Final = "{count} smaller parts"
"""The label of all parts of the peak that are too small for a label of their own."""

_UNREAD: Final = (
    "The page has no code of {files}. memwatch reads only files that are as they were when the run started. If a file "
    "has changed since, its lines may have other numbers now."
)
_MOST_FILES: Final = 3  # names in one sentence; a guess


def unread_text(files: Sequence[str]) -> str:
    """Return a sentence about the program's files whose code is not on the page; empty if there is none."""
    if not files:
        return ""
    shown = ", ".join(files[:_MOST_FILES])
    more = len(files) - _MOST_FILES
    return _UNREAD.format(files=f"{shown} and {more} more" if more > 0 else shown)
