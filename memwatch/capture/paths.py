"""Store retention paths as rows. Each different path is stored once, as a list of references, and has a number.

The recorder appends rows with `PathTables` while the program runs. The analysis reads them with `read_paths`. Both are
in this file, because both depend on the columns of an `Edge` and a `Vertex`. The targets of references are not stored,
so paths to different tensors can be equal.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from memwatch.capture.rows import EdgesRow, VerticesRow
from memwatch.capture.schema import NONE
from memwatch.kinds.edges import Edge, EdgeKind, Vertex, VertexKind
from memwatch.own_code import CodeOwner, code_owner

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.capture.columns import Capture

Path = tuple[Edge, ...]
"""References from a root to an object that it keeps alive, beginning at the root."""

_BETWEEN_SIZES: Final = " "
_MOST_LEVELS: Final = 32
"""The most nested functions (`inner`) of a vertex that are read, because a damaged file may nest them without end. A
guess."""
_EDGE_KINDS: Final = {kind.value: kind for kind in EdgeKind}
_VERTEX_KINDS: Final = {kind.value: kind for kind in VertexKind}


class PathTables:
    """Number paths, and append the rows of tables `edges` and `vertices` for new paths.

    Args:
        strings: interns a text.
        edge_rows: the list to which rows of `edges` are appended.
        vertex_rows: the list to which rows of `vertices` are appended.
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
        """Return the number of a path. A path that was not seen before gets a new number."""
        number = self._paths.get(path)
        if number is None:
            number = next(self._path_numbers)
            rows: list[int] = []
            for depth, edge in enumerate(path):
                rows += self._edge_row(number, depth, edge)
            # Vertices are appended before edges, and edges before the number is stored. So the tables stay valid if a
            # flush runs in between, or if a signal handler raises an error.
            self._edge_rows += rows
            self._paths[path] = number
        return number

    def _edge_row(self, path: int, depth: int, edge: Edge) -> EdgesRow:
        return EdgesRow(
            path=path,
            depth=depth,
            kind=edge.kind.value,
            name=self._text(edge.name),
            position=_number(edge.position),
            owner=self._vertex(edge.owner),
            reader=self._vertex(edge.reader),
            file=self._text(edge.file),
            line=_number(edge.line),
            code=int(code_owner(edge.file)) if edge.file else NONE,
        )

    def _vertex(self, vertex: Vertex | None) -> int:
        if vertex is None:
            return NONE
        number = self._vertices.get(vertex)
        if number is None:
            inner = self._vertex(vertex.inner)
            number = next(self._vertex_numbers)
            shape = None if vertex.shape is None else _BETWEEN_SIZES.join(map(str, vertex.shape))
            self._vertex_rows += VerticesRow(
                vertex=number,
                kind=vertex.kind.value,
                name=self._text(vertex.name or None),
                file=self._text(vertex.file),
                line=_number(vertex.line),
                count=_number(vertex.count),
                limit=_number(vertex.limit),
                nbytes=_number(vertex.nbytes),
                shape=self._text(shape),
                dtype=self._text(vertex.dtype or None),
                thread=self._text(vertex.thread or None),
                library=self._text(vertex.library or None),
                inner=inner,
            )
            self._vertices[vertex] = number
        return number

    def _text(self, text: str | None) -> int:
        return NONE if text is None else self._strings(text)


def _number(value: int | None) -> int:
    return NONE if value is None else value


def read_paths(capture: Capture) -> dict[int, Path]:
    """Return the paths of a capture by number. Paths whose rows were never written are missing."""
    vertices = _read_vertices(capture)
    table = capture.tables["edges"]
    edges = map(EdgesRow, *(table[name].tolist() for name in EdgesRow._fields))
    text = _Texts(capture.strings)
    found: dict[int, Path] = {}
    for number, rows in itertools.groupby(edges, key=lambda row: row.path):
        found[number] = tuple(
            Edge(
                _EDGE_KINDS.get(row.kind, EdgeKind.REFERENCE),
                text(row.name),
                _optional(row.position),
                vertices.get(row.owner),
                file=text(row.file),
                line=_optional(row.line),
                reader=vertices.get(row.reader),
                is_own=None if row.code == NONE else row.code == CodeOwner.PROGRAM,
                is_torchs=row.code == CodeOwner.TORCH,
            )
            for row in rows
        )
    return found


def _read_vertices(capture: Capture) -> dict[int, Vertex]:
    table = capture.tables["vertices"]
    text = _Texts(capture.strings)
    found: dict[int, Vertex] = {}
    levels: dict[int, int] = {}
    for row in map(VerticesRow, *(table[name].tolist() for name in VerticesRow._fields)):
        sizes = text(row.shape)
        levels[row.vertex] = levels.get(row.inner, 0) + 1
        found[row.vertex] = Vertex(
            _VERTEX_KINDS.get(row.kind, VertexKind.OBJECT),
            name=text(row.name) or "",
            file=text(row.file),
            line=_optional(row.line),
            count=_optional(row.count),
            limit=_optional(row.limit),
            nbytes=_optional(row.nbytes),
            shape=None if sizes is None else tuple(int(size) for size in sizes.split() if size.isdecimal()),
            dtype=text(row.dtype) or "",
            thread=text(row.thread) or "",
            inner=found.get(row.inner) if levels[row.vertex] <= _MOST_LEVELS else None,
            library=text(row.library) or "",
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
