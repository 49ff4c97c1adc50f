"""Torch's tables of hooks on a retention path: `_forward_hooks` of a module, `_backward_hooks` of a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch._torch.modules import HOOK_TABLES
from memwatch.kinds.edges import EdgeKind
from memwatch.leaks.cut import is_hook_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.kinds.edges import Edge


def hook_entry(path: Sequence[Edge]) -> int | None:
    """Return the place on a path of the first reference from a table of hooks to a hook, or None.

    A dictionary of the program's own may have numbers as keys too: what leads to the table tells them apart.
    """
    for place in range(1, len(path)):
        if is_hook_number(path[place]) and _leads_to_table(path[place - 1]):
            return place
    return None


def is_registration(cut: Edge, path: Sequence[Edge]) -> bool:
    """Return True if registering a hook made the reference to cut."""
    place = hook_entry(path)
    return cut.kind.row.is_hook_table or (place is not None and path[place] is cut)


def held_by_hook(cut: Edge | None, path: Sequence[Edge]) -> bool:
    """Return True if the reference to cut lies behind a hook that was registered before."""
    place = hook_entry(path)
    return place is not None and any(edge is cut for edge in path[place + 1 :])


def _leads_to_table(edge: Edge) -> bool:
    return edge.kind.row.is_hook_table or (
        edge.kind in (EdgeKind.ATTRIBUTE, EdgeKind.GLOBAL) and edge.name in HOOK_TABLES
    )
