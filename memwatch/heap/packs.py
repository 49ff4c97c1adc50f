"""What recorders of memwatch pack while they watch what autograd saves: a search looks through to what is inside.

Without it whoever looks while a profile is on, or at a graph that was made under one, finds nobody who holds the saved
tensors: a pack of the compiled recorder is a capsule, in which gc sees nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from memwatch.edges import EdgeKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from memwatch.heap.autograd import NativeEdge

_OPENERS: Final[dict[int, Callable[[Any], tuple[Any, Any] | None]]] = {}
"""By the id of the class of packs, which a recorder never lets go."""


def look_through(kind: type, open_pack: Callable[[Any], tuple[Any, Any] | None]) -> None:
    """Have packs of a class looked through from now on: they may outlive their profile.

    Args:
        kind: the class.
        open_pack: returns what a pack keeps, and the program's hook that unpacks it or None; None for no pack.
    """
    _OPENERS[id(kind)] = open_pack


def seen_through(edges: Iterable[NativeEdge]) -> Iterator[NativeEdge]:
    """Yield references of an autograd node, those of what memwatch packed as they would be without it."""
    opened: set[tuple[str | None, int | None]] = set()
    for edge in edges:
        at = edge.name, edge.position
        open_pack = _OPENERS.get(id(type(edge.target))) if edge.kind is EdgeKind.PACKED else None
        content = None if open_pack is None else open_pack(edge.target)
        if content is not None:
            opened.add(at)
            kept, unpack = content
            if kept is not None:
                yield edge._replace(kind=EdgeKind.SAVED if unpack is None else EdgeKind.PACKED, target=kept)
            if unpack is not None:
                yield edge._replace(kind=EdgeKind.UNPACK_HOOK, target=unpack)
        elif edge.kind is not EdgeKind.UNPACK_HOOK or at not in opened:
            yield edge
