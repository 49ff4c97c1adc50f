"""The packs that memwatch's recorders make of saved tensors. A search finds the tensors inside.

A pack of the compiled recorder is a capsule, and gc sees nothing inside a capsule. Without this module, a search
during a profile would find no holder of the saved tensors. The same holds for a graph that was made during a profile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from memwatch.kinds.edges import EdgeKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from memwatch.heap.autograd import NativeEdge

_OPENERS: Final[dict[int, Callable[[Any], tuple[Any, Any] | None]]] = {}
"""The opener of each class of packs, by the id of the class, which a recorder keeps for ever."""


def look_through(kind: type, open_pack: Callable[[Any], tuple[Any, Any] | None]) -> None:
    """From now on, searches find the tensors in packs of a class. They may outlive their profile.

    Args:
        kind: the class.
        open_pack: returns the content of a pack, and the program's hook that unpacks it or None; None for other
            objects.
    """
    _OPENERS[id(kind)] = open_pack


def seen_through(edges: Iterable[NativeEdge]) -> Iterator[NativeEdge]:
    """Yield the references of an autograd node, with memwatch's packs replaced by their contents."""
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
