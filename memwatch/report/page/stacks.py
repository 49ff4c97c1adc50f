"""Call stacks of the storages in the page, as a tree of frames: deep stacks share their outer part."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from memwatch.own_code import CodeOwner
from memwatch.report.page.columns import Packed, Words, pack_ints

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.report.source import Reading

_OwnedFrame = tuple[str, int, str, CodeOwner]
"""File, line, function, and whose code it is."""


class Stacks(TypedDict):
    """The nodes of the tree (parent and frame), and the innermost node of each stack."""

    parent: Packed
    file: Packed
    line: Packed
    function: Packed
    owner: Packed
    """Whose code it is, as a number of `CodeOwner`."""
    stack: Packed
    node: Packed


def pack_stacks(reading: Reading, stack_ids: Iterable[int], words: Words) -> Stacks:
    """Return the stacks with these ids."""
    nodes: dict[tuple[int, _OwnedFrame], int] = {}
    innermost: dict[int, int] = {}
    for stack_id in known(stack_ids):
        node = -1
        for frame in reversed(_frames(reading, stack_id)):
            node = nodes.setdefault((node, frame), len(nodes))
        innermost[stack_id] = node
    frames = [frame for _, frame in nodes]
    return Stacks(
        parent=pack_ints([parent for parent, _ in nodes], delta=True),
        file=pack_ints(words.codes(frame[0] for frame in frames), kind="text"),
        line=pack_ints([frame[1] for frame in frames]),
        function=pack_ints(words.codes(frame[2] for frame in frames), kind="text"),
        owner=pack_ints([frame[3] for frame in frames]),
        stack=pack_ints(list(innermost), delta=True),
        node=pack_ints(list(innermost.values()), delta=True),
    )


def own_lines(reading: Reading, stack_ids: Iterable[int]) -> set[tuple[str, int]]:
    """Return file and number of each line of the program's own code on these stacks, packages' left out."""
    return {
        (file, line)
        for stack_id in known(stack_ids)
        for file, line, _, owner in _frames(reading, stack_id)
        if owner is CodeOwner.PROGRAM
    }


def _frames(reading: Reading, stack_id: int) -> list[_OwnedFrame]:
    owners = reading.code_owners(stack_id)
    return [(*frame[:3], owner) for frame, owner in zip(reading.stack(stack_id), owners, strict=True)]


def known(stack_ids: Iterable[int]) -> list[int]:
    """Return the different ids of known stacks."""
    return sorted({int(stack_id) for stack_id in stack_ids if stack_id >= 0})
