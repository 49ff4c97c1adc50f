"""The names of tensors that no module owns: how the program writes the way to a leaf of autograd's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.heap.variable_search import variables_of_calls, ways_from_calls
from memwatch.own_code import CodeOwner

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from torch import Tensor


def names_of_tensors(tensors: Iterable[Tensor], frame: FrameType | None) -> dict[int, str]:
    """Return what the running calls of the program call some tensors, by `id`: `w`, `self.image`, `weights['in']`.

    The shortest way names a tensor, and of several the outermost call's. What only calls of packages hold has no
    name. An attribute of a module is called as the module's own code calls it, without `self`.

    Args:
        tensors: the tensors.
        frame: the innermost call.
    """
    wanted = set(map(id, tensors))
    names: dict[int, tuple[int, str]] = {}
    for ways_from in (variables_of_calls, ways_from_calls):  # the first takes a twentieth of the time
        for way in ways_from(frame, CodeOwner.PROGRAM):
            key = id(way.value)
            if key in wanted and (key not in names or way.hops < names[key][0]):
                names[key] = way.hops, way.name.removeprefix(".")
        if len(names) == len(wanted):
            break
    return {key: name for key, (_, name) in names.items()}
