"""The words of the HTML page that its parts share: the names of its sections, and the parts of the peak."""

from __future__ import annotations

from typing import Final

from memwatch.words.ways import HEADING

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

BASES: Final = {
    "simulated": "Simulated: from the recorded allocations and frees.",
    "estimated": "Estimated: the recording does not show all allocations of the changed program.",
}
"""The meaning of the word after a predicted peak, by the basis of a change."""

SMALL_PARTS: Final = "{count} smaller parts"
"""The label of all parts of the peak that are too small for a label of their own."""
