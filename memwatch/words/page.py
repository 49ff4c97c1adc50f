"""The words of the HTML page that its parts share: the names of its sections, and the parts of the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch.sizes import format_bytes, format_change
from memwatch.words.ways import HEADING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    "The live bytes, by the line of your code that they come from, with the backward of its ops: a gradient "
    "counts for the line of the forward op."
)
"""The sentence above the lines of the program. The summary's heading of its lines (`summary.LINES`) says the same."""

SMALL_PARTS: Final = "{count} smaller parts"
"""The label of all parts of the peak that are too small for a label of their own."""

_SMALL_FINDING: Final = "1 smaller finding, which would lower the peak by less than {bound}"
_SMALL_FINDINGS: Final = "{count} smaller findings, which would each lower the peak by less than {bound}"


def small_findings_title(count: int, bound: str) -> str:
    """Return the line that opens the list of the small findings."""
    return (_SMALL_FINDING if count == 1 else _SMALL_FINDINGS).format(count=count, bound=bound)


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


_ROSE: Final = "The peak rose by {change}{share}, from {old} to {new}."
_FELL: Final = "The peak fell by {change}{share}, from {old} to {new}."
_EQUAL: Final = "Both peaks are {new}."
_MOST_OF_CHANGE: Final = " The category {category} changed most: by {change}."


def diff_headline(old_bytes: int, new_bytes: int, changes: Mapping[str, int]) -> str:
    """Return the first sentences of the page of two captures.

    Args:
        old_bytes: the old peak.
        new_bytes: the new peak.
        changes: by how many bytes each category is larger at the new peak.
    """
    change, old, new = new_bytes - old_bytes, format_bytes(old_bytes), format_bytes(new_bytes)
    if not change:
        text = _EQUAL.format(new=new)
    else:
        text = (_ROSE if change > 0 else _FELL).format(
            change=format_bytes(abs(change)),
            share=f" ({100 * abs(change) / old_bytes:.1f} %)" if old_bytes else "",
            old=old,
            new=new,
        )
    largest = max(changes, key=lambda name: abs(changes[name]), default=None)
    if largest is None or not changes[largest]:
        return text
    return text + _MOST_OF_CHANGE.format(category=largest, change=format_change(changes[largest]))
