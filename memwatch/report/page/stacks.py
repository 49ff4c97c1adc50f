"""Call stacks of the storages in the page, as a tree of frames: deep stacks share their outer part."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from memwatch.report.page.columns import Packed, Words, pack_ints

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.report.source import Frame, Reading


class Stacks(TypedDict):
    """The nodes of the tree (parent and frame), and the innermost node of each stack."""

    parent: Packed
    file: Packed
    line: Packed
    function: Packed
    user: Packed
    stack: Packed
    node: Packed


def pack_stacks(reading: Reading, stack_ids: Iterable[int], words: Words) -> Stacks:
    """Return the stacks with these ids."""
    nodes: dict[tuple[int, Frame], int] = {}
    innermost: dict[int, int] = {}
    for stack_id in known(stack_ids):
        node = -1
        for file, line, function, user in reversed(reading.stack(stack_id)):
            node = nodes.setdefault((node, (file, line, function, bool(user))), len(nodes))
        innermost[stack_id] = node
    frames = [frame for _, frame in nodes]
    return Stacks(
        parent=pack_ints([parent for parent, _ in nodes], delta=True),
        file=pack_ints(words.codes(frame[0] for frame in frames), kind="text"),
        line=pack_ints([frame[1] for frame in frames]),
        function=pack_ints(words.codes(frame[2] for frame in frames), kind="text"),
        user=pack_ints([frame[3] for frame in frames]),
        stack=pack_ints(list(innermost), delta=True),
        node=pack_ints(list(innermost.values()), delta=True),
    )


def own_lines(reading: Reading, stack_ids: Iterable[int]) -> set[tuple[str, int]]:
    """Return file and number of each line of the program's own code on these stacks."""
    return {
        (file, line)
        for stack_id in known(stack_ids)
        for file, line, _, user in reading.stack(stack_id)
        if user
    }


def known(stack_ids: Iterable[int]) -> list[int]:
    """Return the different ids, without that of no stack."""
    return sorted({int(stack_id) for stack_id in stack_ids if stack_id >= 0})
