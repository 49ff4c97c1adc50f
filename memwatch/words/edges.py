"""The words for references and for the objects at their ends."""

from __future__ import annotations

from typing import Final

from memwatch.kinds.edges import OWNERS, Edge, EdgeKind, Vertex, VertexKind
from memwatch.sizes import format_bytes
from memwatch.words.places import place

_MAX_NAME: Final = 60  # characters of a quoted name; a guess

UNKNOWN: Final = "?"
HIDDEN_MARK: Final = "  [C++, unseen by gc]"
OF_OWNER: Final = "{reference} of {owner}"

READ_GLOBAL: Final = "global `{name}` of {module}, read by {reader}"
SHELL_RESULTS: Final[dict[str, str]] = {
    "_": "last result",
    "__": "last but one result",
    "___": "third last result",
}
IN_THREAD: Final = " in thread {thread}"
SOME_FUNCTION: Final = "a function"

AT: Final = " ({place})"
DLPACK_CAPSULE: Final = "DLPack capsule"
NAMELESS_MODULE: Final = "module"
LIMITED: Final = "{container} (maxlen {limit})"
LIMITED_CACHE: Final = "{container} (maxsize {limit})"


def edge_phrase(edge: Edge, *, short: bool = False) -> str:
    """Return the words for a reference, such as ``closure cell `x` of hook (train.py:12)``; if short, no place."""
    if edge.kind is EdgeKind.GLOBAL and edge.reader is not None and edge.owner is not None:
        reader = vertex_phrase(edge.reader, short=short)
        return READ_GLOBAL.format(name=edge.name, module=edge.owner.name, reader=reader)
    owner = "" if edge.owner is None else _owner_phrase(edge, edge.owner, short=short)
    reference = phrase_without_owner(edge, owner)
    return OF_OWNER.format(reference=reference, owner=owner) if owner and not names_owner(edge) else reference


def names_owner(edge: Edge) -> bool:
    """Return True if the words for a reference name its owner. Otherwise the owner follows the words."""
    return "{owner}" in _template(edge)


def phrase_without_owner(edge: Edge, owner: str = "") -> str:
    """Return the words for a reference but not for its owner, such as ``attribute .cache``."""
    return _template(edge).format(
        name=UNKNOWN if edge.name is None else edge.name,
        position=UNKNOWN if edge.position is None else edge.position,
        quoted=_quoted(edge.name),
        result=SHELL_RESULTS.get(edge.name or "", ""),
        owner=owner,
    )


def _template(edge: Edge) -> str:
    row = edge.kind.row
    has_name = edge.name is not None or "{name}" not in row.words
    if row.words_by_position is not None and (edge.position is not None or not has_name):
        return row.words_by_position
    return row.words


def edge_line(edge: Edge) -> str:
    """Return one line of a path: the reference, the place to edit it, what it leads to."""
    target = "" if edge.target is None else f" -> {vertex_phrase(edge.target)}"
    return f"{reference_phrase(edge)}{target}{HIDDEN_MARK if edge.hidden else ''}"


def reference_phrase(edge: Edge) -> str:
    """Return the words for a reference, and the place to edit it unless they name that already."""
    words = edge_phrase(edge)
    if edge.file and not _shows_place(edge) and (edge.line is not None or not edge.kind.row.is_of_any_code):
        words += f"  ({place(edge.file, edge.line)})"
    return words


def vertex_phrase(vertex: Vertex, *, short: bool = False) -> str:
    """Return the words for an object: ``Tensor [8, 16] float32``, ``f (train.py:12)``, ``dict of 3``.

    Short words leave out where a function is defined.
    """
    if vertex.kind is VertexKind.MODULE and not vertex.name:
        return NAMELESS_MODULE
    words = vertex.kind.row.words.format(
        name=vertex.name,
        place=place(vertex.file, vertex.line),
        at=_at(vertex, short=short),
        count=vertex.count,
        size=format_bytes(vertex.nbytes or 0),
        inner="" if vertex.inner is None else vertex_phrase(vertex.inner, short=short),
    )
    if vertex.shape is not None:
        words += f" [{', '.join(map(str, vertex.shape))}] {vertex.dtype}"
    limited = LIMITED_CACHE if vertex.kind is VertexKind.CACHE else LIMITED
    return words if vertex.limit is None else limited.format(container=words, limit=vertex.limit)


def _at(vertex: Vertex, *, short: bool) -> str:
    return "" if short else AT.format(place=place(vertex.file, vertex.line))


def _owner_phrase(edge: Edge, owner: Vertex, *, short: bool) -> str:
    """Return the words for the object that refers."""
    words, template = vertex_phrase(owner, short=short), OWNERS.get((edge.kind, owner.kind))
    if template is None:
        return words
    return template.format(
        owner=words,
        name=owner.name,
        thread=IN_THREAD.format(thread=repr(owner.thread)) if owner.thread else "",
        at=_at(owner, short=short),
        inner=SOME_FUNCTION if owner.inner is None else vertex_phrase(owner.inner, short=short),
    )


def _shows_place(edge: Edge) -> bool:
    """Return True if the words for the owner already name the file and the line of the edge."""
    return edge.owner is not None and edge.line is not None and edge.owner.line == edge.line


def _quoted(name: str | None) -> str:
    text = repr(name)
    return text if len(text) <= _MAX_NAME else f"{text[:_MAX_NAME]}..."
