"""Turn a chain of objects into steps a person reads: which name, attribute, cell or key holds what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from memwatch.heap.edge_names import NOWHERE, name_edge
from memwatch.heap.names import describe, place

if TYPE_CHECKING:
    from collections.abc import Sequence


class NamedGraph(Protocol):
    """What naming needs of a graph: objects by position, and words for C++ edges."""

    objects: list[Any]

    def label(self, parent: int, child: int) -> tuple[str, bool] | None:
        """Return the words of a C++ edge and whether gc is blind to it, or None for a Python edge."""


@dataclass(frozen=True, slots=True)
class Step:
    """One reference of a retention path, as text.

    Attributes:
        words: the reference, such as ``closure cell `x` of hook (train.py:12)``.
        target: what it leads to, such as ``Tensor [8] float32``.
        hidden: True for a reference held by C++ that gc cannot see.
        file: the source file where the reference can be edited, if known.
        line: the line in that file.
        start: place in the chain of objects of the one that refers.
        end: place in the chain of the one referred to.
    """

    words: str
    target: str
    hidden: bool = False
    file: str | None = None
    line: int | None = None
    start: int = 0
    end: int = 0

    def __str__(self) -> str:
        where = (
            f"  ({place(self.file, self.line)})" if self.file and f":{self.line}" not in self.words else ""
        )
        return f"{self.words}{where} -> {self.target}{'  [C++, unseen by gc]' if self.hidden else ''}"


def steps_of(snapshot: NamedGraph, chain: Sequence[int]) -> list[Step]:
    """Name each reference along a chain of positions.

    Args:
        snapshot: the open graph.
        chain: positions, each referring to the next; the first may be a root.

    Returns:
        Steps, fewer than references: an instance, its dictionary and a value make one attribute.
    """
    objects = [snapshot.objects[position] for position in chain]
    steps: list[Step] = []
    place_ = 0
    while place_ < len(chain) - 1:
        cpp = snapshot.label(chain[place_], chain[place_ + 1])
        if cpp is not None:
            label, hidden = cpp
            words, consumed, where = f"{label} of {describe(objects[place_])}", 1, NOWHERE
        else:
            words, consumed, where = name_edge(objects, place_)
            hidden = False
        end = min(place_ + consumed, len(chain) - 1)
        if words:
            steps.append(Step(words, describe(objects[end]), hidden, *where, place_, end))
        place_ = end
    return steps
