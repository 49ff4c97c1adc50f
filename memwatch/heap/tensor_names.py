"""The names of tensors that no module owns: how the program writes the way to a leaf of autograd's."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from memwatch.heap.variable_search import Way, variables_of_calls, ways_from_calls
from memwatch.own_code import CodeOwner

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from torch import Tensor


def names_of_tensors(
    tensors: Iterable[Tensor], frame: FrameType | None, most_ways: int
) -> tuple[dict[int, str], int]:
    """Return the names of some tensors in the running calls, by `id`: `w`, `self.image`, `weights['in']`.

    The shortest path names a tensor, and among several the outermost call's. A tensor in calls of packages alone has
    no name. An attribute of a module has its name in the module's own code, without `self`.

    Args:
        tensors: the tensors.
        frame: the innermost call.
        most_ways: largest number of references to follow behind the variables themselves.

    Returns:
        The names, and the number of references that were followed.
    """
    wanted = set(map(id, tensors))
    names: dict[int, tuple[int, str]] = {}

    def note(ways: Iterable[Way]) -> int:
        count = 0
        for way in ways:
            count += 1
            key = id(way.value)
            if key in wanted and (key not in names or way.hops < names[key][0]):
                names[key] = way.hops, way.name.removeprefix(".")
        return count

    note(variables_of_calls(frame, CodeOwner.PROGRAM))  # takes a twentieth of the time of the second search
    followed = 0
    if len(names) < len(wanted):
        followed = note(islice(ways_from_calls(frame, CodeOwner.PROGRAM), max(most_ways, 0)))
    return {key: name for key, (_, name) in names.items()}, followed
