"""Kinds of leaks: one row per kind, with its words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class RoundPlace(NamedTuple):
    """Where the rounds of a program's work come from.

    Attributes:
        file: the file.
        line: the line at which the loop begins, or the first line of the function of the task.
        function: the function with the loop, or of the task.
        is_task: True if a thread pool runs each round as a task of its own.
    """

    file: str
    line: int
    function: str
    is_task: bool = False


@dataclass(frozen=True, slots=True)
class LeakRow:
    """The properties of one kind of leak.

    Attributes:
        text: the kind in tables and JSON.
        held_by: the words between a leak and its holder.
        held_by_short: the same for the summary line of a test; None if they are equal.
        meaning: the kind in one sentence, for a legend.
        is_reached: True if a live root reaches it: its path is a way from there, and no cycle.
        amount: a template for how much leaked: hooks have no bytes of their own, and the bytes of nodes are estimated
            from their number.
        has_bytes: False if nothing of it is measured in bytes, so that no size is too small to count.
        one: the word for one of the leaked things.
        many: the word for several of them.
    """

    text: str
    held_by: str
    meaning: str
    held_by_short: str | None = None
    is_reached: bool = False
    amount: str = "{size} in {counted}"
    has_bytes: bool = True
    one: str = "tensor"
    many: str = "tensors"


class LeakKind(str, Enum):
    """Why tensors outlive the code that made them; equal to its name as text, such as ``"cycle"``."""

    _value_: str
    row: LeakRow

    def __new__(cls, row: LeakRow) -> LeakKind:  # noqa: D102
        kind = str.__new__(cls, row.text)
        kind._value_ = row.text
        kind.row = row
        return kind

    # garbage that only gc frees
    CYCLE = LeakRow(
        "cycle",
        held_by="freed only by gc: a reference cycle through",
        held_by_short="freed only by gc: cycle through",
        meaning="a reference cycle: only the garbage collector frees it, some time later",
    )
    # a loop through autograd's C++, which gc cannot see
    UNCOLLECTABLE = LeakRow(
        "uncollectable",
        held_by="gc cannot free it: a loop through",
        held_by_short="never freed: loop through",
        meaning="a loop through autograd that the garbage collector cannot see: it is never freed",
    )
    # a live root reaches it
    RETAINED = LeakRow(
        "retained",
        held_by="kept alive by",
        meaning="a live object holds it, so it is freed only with that object",
        is_reached=True,
    )
    # the nodes of an autograd graph, which a live root reaches; no tensor's memory
    GRAPH = LeakRow(
        "graph",
        held_by="kept alive by",
        meaning=(
            "the graph of a value that each step adds to: its nodes stay, though backward has freed their "
            "tensors"
        ),
        is_reached=True,
        amount="about {size} in {counted}",
        one="autograd node",
        many="autograd nodes",
    )
    # hooks that each call registers, which a live root reaches; no tensor's memory
    HOOKS = LeakRow(
        "hooks",
        held_by="registered on",
        meaning=(
            "hooks that each call registers and none removes; they hold no tensor, but each call runs all of "
            "them"
        ),
        is_reached=True,
        amount="{counted}",
        has_bytes=False,
        one="hook",
        many="hooks",
    )

    __str__ = str.__str__
    __repr__ = str.__repr__

    def __format__(self, format_spec: str) -> str:
        return format(self.value, format_spec)

    @property
    def is_reached(self) -> bool:
        """Whether a live root reaches it: its path is a way from there, and no cycle."""
        return self.row.is_reached

    @property
    def is_of_tensors(self) -> bool:
        """Whether tensors leak, and not hooks or nodes of autograd."""
        return self not in (LeakKind.GRAPH, LeakKind.HOOKS)

    def is_below(self, nbytes: int, least_bytes: int) -> bool:
        """Return True if a leak of so many bytes is too small to count; hooks have none, and always count."""
        return self.row.has_bytes and nbytes < least_bytes

    @property
    def held_by(self) -> str:
        """The verb phrase of a leak of this kind, which comes before the words for its holder."""
        return self.row.held_by

    @property
    def held_by_short(self) -> str:
        """The same phrase for the summary line of a test."""
        return self.row.held_by_short or self.row.held_by
