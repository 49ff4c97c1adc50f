"""Retention paths as rows: each distinct path is stored once, as its references, and named by a number.

The recorder appends rows with `PathTables` while the program runs; the analysis reads them back with `read_paths`. Both
are in this file, because both depend on how an `Edge` and a `Vertex` become columns. The targets of references are not
stored: a path is one however large the tensors are to which it leads.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from memwatch.capture.schema import NONE
from memwatch.kinds.edges import Edge, EdgeKind, Vertex, VertexKind
from memwatch.own_code import CodeOwner, code_owner

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.capture.columns import Capture

Path = tuple[Edge, ...]
"""References from a root to an object that it keeps alive, the root's first."""

_BETWEEN_SIZES: Final = " "
_MOST_LEVELS: Final = 32
"""Functions within functions that are read of a vertex. A guess: a damaged file may nest them without end."""
_EDGE_KINDS: Final = {kind.value: kind for kind in EdgeKind}
_VERTEX_KINDS: Final = {kind.value: kind for kind in VertexKind}


class PathTables:
    """Number paths, and append the rows of tables `edges` and `vertices` for new paths.

    Args:
        strings: interns a text.
        edge_rows: where rows of `edges` go.
        vertex_rows: where rows of `vertices` go.
    """

    def __init__(self, strings: Callable[[str], int], edge_rows: list[int], vertex_rows: list[int]) -> None:
        self._strings = strings
        self._edge_rows = edge_rows
        self._vertex_rows = vertex_rows
        self._paths: dict[Path, int] = {}
        self._vertices: dict[Vertex, int] = {}
        self._path_numbers = itertools.count()
        self._vertex_numbers = itertools.count()

    def __call__(self, path: Path) -> int:
        """Return the number of a path, a new one at first sight."""
        number = self._paths.get(path)
        if number is None:
            number = next(self._path_numbers)
            rows: list[int] = []
            for depth, edge in enumerate(path):
                rows += (number, depth, *self._edge_row(edge))
            # vertices, edges, then the number: a flush, or a handler of a signal that raises, may come in between
            self._edge_rows += rows
            self._paths[path] = number
        return number

    def _edge_row(self, edge: Edge) -> tuple[int, ...]:
        return (
            edge.kind.value,
            self._text(edge.name),
            _number(edge.position),
            self._vertex(edge.owner),
            self._vertex(edge.reader),
            self._text(edge.file),
            _number(edge.line),
            int(code_owner(edge.file)) if edge.file else NONE,
        )

    def _vertex(self, vertex: Vertex | None) -> int:
        if vertex is None:
            return NONE
        number = self._vertices.get(vertex)
        if number is None:
            inner = self._vertex(vertex.inner)
            number = next(self._vertex_numbers)
            shape = None if vertex.shape is None else _BETWEEN_SIZES.join(map(str, vertex.shape))
            self._vertex_rows += (
                number,
                vertex.kind.value,
                self._text(vertex.name or None),
                self._text(vertex.file),
                _number(vertex.line),
                _number(vertex.count),
                _number(vertex.limit),
                _number(vertex.nbytes),
                self._text(shape),
                self._text(vertex.dtype or None),
                self._text(vertex.thread or None),
                self._text(vertex.library or None),
                inner,
            )
            self._vertices[vertex] = number
        return number

    def _text(self, text: str | None) -> int:
        return NONE if text is None else self._strings(text)


def _number(value: int | None) -> int:
    return NONE if value is None else value


def read_paths(capture: Capture) -> dict[int, Path]:
    """Return the paths of a capture by number; those are missing whose rows were never written."""
    vertices = _read_vertices(capture)
    columns = [column.tolist() for column in capture.tables["edges"].values()]
    text = _Texts(capture.strings)
    found: dict[int, Path] = {}
    for number, rows in itertools.groupby(zip(*columns, strict=True), key=lambda row: row[0]):
        found[number] = tuple(
            Edge(
                _EDGE_KINDS.get(kind, EdgeKind.REFERENCE),
                text(name),
                _optional(position),
                vertices.get(owner),
                file=text(file),
                line=_optional(line),
                reader=vertices.get(reader),
                is_own=None if code == NONE else code == CodeOwner.PROGRAM,
                is_torchs=code == CodeOwner.TORCH,
            )
            for _, _, kind, name, position, owner, reader, file, line, code in rows
        )
    return found


def _read_vertices(capture: Capture) -> dict[int, Vertex]:
    columns = [column.tolist() for column in capture.tables["vertices"].values()]
    text = _Texts(capture.strings)
    found: dict[int, Vertex] = {}
    levels: dict[int, int] = {}
    for number, kind, name, file, line, count, limit, nbytes, shape, dtype, thread, library, inner in zip(
        *columns, strict=True
    ):
        sizes = text(shape)
        levels[number] = levels.get(inner, 0) + 1
        found[number] = Vertex(
            _VERTEX_KINDS.get(kind, VertexKind.OBJECT),
            text(name) or "",
            text(file),
            _optional(line),
            _optional(count),
            _optional(limit),
            _optional(nbytes),
            None if sizes is None else tuple(int(size) for size in sizes.split() if size.isdecimal()),
            text(dtype) or "",
            text(thread) or "",
            found.get(inner) if levels[number] <= _MOST_LEVELS else None,
            text(library) or "",
        )
    return found


class _Texts:
    """Return the text of a string id, or None."""

    def __init__(self, strings: list[str]) -> None:
        self._strings = strings

    def __call__(self, number: int) -> str | None:
        return self._strings[number] if 0 <= number < len(self._strings) else None


def _optional(value: int) -> int | None:
    return None if value == NONE else value
