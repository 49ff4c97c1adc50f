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

SMALL_PARTS: Final = "{count} smaller parts"
"""The label of all parts of the peak that are too small for a label of their own."""
