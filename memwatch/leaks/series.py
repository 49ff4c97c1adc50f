"""Series of references: the 17th and the 18th item of one list are one leak, not two."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from memwatch.edges import EdgeKind

if TYPE_CHECKING:
    from collections.abc import Hashable

    from memwatch.edges import Edge, Vertex

_NUMBERS: Final = re.compile(r"\d+")
_ENTRY: Final = re.compile(r"\d+|'[^']*'")  # the varying parts of a key as Python writes it
_PLAIN: Final = re.compile(r"[-'\"\d]")
"""How numbers and text begin; the key is another object otherwise."""
_ENTRIES: Final = frozenset(
    {EdgeKind.PARAMETER, EdgeKind.BUFFER, EdgeKind.SUBMODULE, EdgeKind.CONTEXT_VARIABLE}
)


_TOGETHER: Final = {EdgeKind.KEY: EdgeKind.VALUE, EdgeKind.CACHE_ARGUMENT: EdgeKind.CACHE_RESULT}


def series_of(edge: Edge) -> Hashable:
    """Return what is equal for references that differ only in an index, a key, a number or a size."""
    return kind_in_series(edge), name_in_series(edge), sort_of(edge.owner), sort_of(edge.reader)


def kind_in_series(edge: Edge) -> EdgeKind:
    """Return the kind of a reference; a key goes with its value, and an argument with its result, by one deletion."""
    return _TOGETHER.get(edge.kind, edge.kind)


def name_in_series(edge: Edge) -> str | None:
    """Return the name of a reference with a star for its varying part, or None if all of it varies."""
    if edge.name is None or edge.kind in _ENTRIES:
        return None
    if edge.kind is EdgeKind.VALUE:
        return _ENTRY.sub("*", edge.name) if _PLAIN.match(edge.name) else None
    return _NUMBERS.sub("*", edge.name)


def sort_of(vertex: Vertex | None) -> Hashable:
    """Return what is equal for owners of one sort: a new list or thread for each call is the same owner."""
    if vertex is None:
        return None
    name, file, dtype = (
        _NUMBERS.sub("*", text or "")
        for text in (vertex.name_in_code or vertex.name, vertex.file, vertex.dtype)
    )
    dimensions = None if vertex.shape is None else len(vertex.shape)
    return vertex.kind, name, file, dtype, dimensions, sort_of(vertex.inner)
