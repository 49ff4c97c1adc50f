"""Choose the reference of a path or a cycle that a person should cut, and say it in one phrase."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.heap.paths import Step

# The earlier a word stands here, the more likely its reference is the one the user wrote and can edit.
_PREFERENCE: Final = (
    "closure cell",
    "packed by a saved-tensor hook",
    "saved tensors[",
    "attribute .",
    "local `",
    "default argument",
    "`self` of bound",
    ".metadata",
    ".grad of",
    "argument",
    "'",
    "item [",
    "member of",
    "hooks (",
    "hooks of",
    "key ",
    "global",
)
_PLUMBING: Final = (
    "attribute .__",
    "class of",
    "__dict__ of",
    "contents of",
    "reference from",
)
_LONGEST: Final = 5


def edge_to_cut(steps: Sequence[Step]) -> Step | None:
    """Return the reference of a cycle that is easiest to edit, or None for no cycle."""
    return min(steps, key=_rank, default=None)


def _rank(step: Step) -> tuple[int, int]:
    if " of class " in step.words and step.words.startswith("__"):  # what every class refers to itself by
        return len(_PREFERENCE), 0
    if step.words.startswith(_PLUMBING):
        return len(_PREFERENCE) + 1, 0
    return next((n for n, word in enumerate(_PREFERENCE) if word in step.words), len(_PREFERENCE)), step.start


_HOOK_NUMBER: Final = re.compile(r"value of key \d+ of OrderedDict")


def _telling(step: Step) -> bool:
    if _HOOK_NUMBER.match(step.words):
        return False
    return not step.words.startswith("(and from") and _rank(step)[0] < len(_PREFERENCE)


def entry_step(steps: Sequence[Step], young: Sequence[bool]) -> Step | None:
    """Return the reference through which something older than the block holds something born in it.

    Args:
        steps: the retention path.
        young: for each object of its chain, whether it was born in the block.
    """
    for step in steps:
        if young[step.end] and not (step.start and young[step.start]):
            return step
    visible = [step for step in steps if not step.hidden]
    return visible[-1] if visible else (steps[0] if steps else None)


def holder_words(steps: Sequence[Step], chosen: Step | None, kind: str) -> str:
    """Say who holds the tensors, root first, in one phrase."""
    if not steps:
        return "C code (no Python reference)"
    if kind != "retained":
        first = chosen or steps[0]
        named = sorted((step for step in steps if step is not first and _telling(step)), key=_rank)
        return ", ".join(dict.fromkeys([first.words, *(step.words for step in named[: _LONGEST - 1])]))
    visible = [step for step in steps if not step.hidden or step is chosen]
    words = [step.words for step in visible]
    if len(words) > _LONGEST + 2:
        words = [*words[:2], "...", *words[-_LONGEST + 1 :]]
        if chosen is not None and chosen.words not in words:
            words.insert(2, chosen.words)
    return " -> ".join(words) or steps[0].words
