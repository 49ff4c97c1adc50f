"""The sizes of the first tensor that the recorder saw on a storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts


def dimensions_of(facts: Facts, storage: int) -> list[int]:
    """Return the sizes of the first tensor on a storage: `[8, 64]` of `float32[8, 64]`; empty if unknown."""
    number = int(facts.capture.tables["births"]["shape"][storage])
    text = "" if number == NONE else str(facts.strings[number])
    inside = text[text.find("[") + 1 : -1] if text.endswith("]") else ""
    return [int(size) for size in inside.split(",")] if inside else []
