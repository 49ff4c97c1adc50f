"""The words for leaks: headlines, what each kind means, how a holder is told."""

from __future__ import annotations

from typing import Final

HEADLINES: Final[dict[str, str]] = {
    "cycle": "freed only by gc: a reference cycle through",
    "uncollectable": "never freed, not even by gc: a loop through",
    "retained": "kept alive by",
}
"""What a leak of this kind does, before its holder."""

MEANINGS: Final[dict[str, str]] = {
    "cycle": "a reference cycle: only the garbage collector frees it, some time later",
    "uncollectable": "a loop through autograd that the garbage collector cannot see: it is never freed",
    "retained": "a live object holds it, so it is freed only with that object",
}

PATH_TITLES: Final[dict[str, str]] = {
    "cycle": "The cycle",
    "uncollectable": "The cycle",
    "retained": "Path from the root",
}
"""The title of a leak's path on the page."""
