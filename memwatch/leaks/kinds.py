"""The kinds of leaks, and the errors of the leak searches."""

from __future__ import annotations

from enum import Enum

from memwatch.errors import MemwatchError
from memwatch.words import leaks as words


class LeakKind(str, Enum):
    """Why tensors outlive the code that made them; equal to its name as text, such as ``"cycle"``."""

    CYCLE = "cycle"  # garbage that only gc frees
    UNCOLLECTABLE = "uncollectable"  # a loop through autograd's C++, which gc cannot see
    RETAINED = "retained"  # a live root reaches it
    GRAPH = "graph"  # the nodes of an autograd graph, which a live root reaches; no tensor's memory

    __str__ = str.__str__
    __repr__ = str.__repr__

    def __format__(self, format_spec: str) -> str:
        return format(self.value, format_spec)

    HOOKS = "hooks"  # hooks that each call registers, which a live root reaches; no tensor's memory

    @property
    def is_reached(self) -> bool:
        """Whether a live root reaches it: its path is a way from there, and no cycle."""
        return self in (LeakKind.RETAINED, LeakKind.GRAPH, LeakKind.HOOKS)

    @property
    def held_by(self) -> str:
        """The verb phrase of a leak of this kind, which comes before the words for its holder."""
        return words.HELD_BY[self]

    @property
    def meaning(self) -> str:
        """The kind in one sentence, for a legend."""
        return words.MEANINGS[self]

    @property
    def path_title(self) -> str:
        """The title over a leak's path."""
        return words.PATH_TITLES[self]


class DrawError(MemwatchError):
    """The picture of a leak could not be made."""
