"""The cause of a leak: what is equal for all leaks that one edit of the program would end.

Series of references come first: two items of one list differ only in their index. A cause is made of them.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import linecache
import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from memwatch.kinds.edges import EdgeKind, VertexKind
from memwatch.kinds.leaks import LeakKind
from memwatch.program_text import parse
from memwatch.words.leaks import CAUSE
from memwatch.words.places import place

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from memwatch.kinds.edges import Edge, Vertex

# Series of references: the 17th and the 18th item of one list are one leak, not two.

_DIGIT_RUNS: Final = re.compile(r"\d+")
_ENTRY: Final = re.compile(r"\d+|'[^']*'")  # the varying parts of a key as Python writes it
_PLAIN: Final = re.compile(r"[-'\"\d]")
"""How numbers and text begin; the key is another object otherwise."""


def series_of(edge: Edge) -> Hashable:
    """Return what is equal for references that differ only in an index, a key, a number or a size."""
    return kind_in_series(edge), name_in_series(edge), sort_of(edge.owner), sort_of(edge.reader)


def kind_in_series(edge: Edge) -> EdgeKind:
    """Return the kind of a reference; a key goes with its value, and an argument with its result, by one deletion."""
    together = edge.kind.row.deleted_with
    return edge.kind if together is None else EdgeKind[together]


def name_in_series(edge: Edge) -> str | None:
    """Return the name of a reference with a star for its varying part, or None if all of it varies."""
    if edge.name is None or edge.kind.row.is_named_per_object:
        return None
    if edge.kind is EdgeKind.VALUE:
        return _ENTRY.sub("*", edge.name) if _PLAIN.match(edge.name) else None
    return _DIGIT_RUNS.sub("*", edge.name)


def sort_of(vertex: Vertex | None) -> Hashable:
    """Return what is equal for owners of one sort: a new list or thread for each call is the same owner."""
    if vertex is None:
        return None
    name, file, dtype = (
        _DIGIT_RUNS.sub("*", text or "")
        for text in (vertex.name_in_code or vertex.name, vertex.file, vertex.dtype)
    )
    dimensions = None if vertex.shape is None else len(vertex.shape)
    return vertex.kind, name, file, dtype, dimensions, sort_of(vertex.inner)


_NUMBERS: Final = re.compile(r"\d+")
_PACKAGES: Final = ("site-packages", "dist-packages")
_DIGITS: Final = 8


def cause_of(kind: LeakKind, cut: Edge | None, edges: Sequence[Edge], cycle_length: int) -> str:
    """Return a short name for the cause of a leak, the same in every process that runs the same code.

    Lines do not count: the name outlives an edit of the code around.

    Args:
        kind: the leak's kind.
        cut: the reference to cut.
        edges: the path or the cycle.
        cycle_length: how many of the edges are the cycle.
    """
    part = _held_from(cut, edges) if kind.is_reached else _looped(cut, edges[:cycle_length])
    # whether gc can free a loop depends on what else is on it: the edit that ends it is the same
    return _short_name(kind if kind.is_reached else LeakKind.CYCLE, part)


def cause_of_thread(kind: LeakKind, work: Vertex) -> str:
    """Return a short name for a thread that each run starts and does not end, by the function that it runs."""
    return _short_name(kind, _vertex(work))


def _short_name(kind: LeakKind, part: Hashable) -> str:
    digest = hashlib.sha256(repr((kind.value, part)).encode("utf-8", "backslashreplace"))
    return CAUSE.format(digest=digest.hexdigest()[:_DIGITS])


def _held_from(cut: Edge | None, edges: Sequence[Edge]) -> Hashable:
    """Return the references from the last that has a name of its own down to the one to cut."""
    if cut is None:
        return EdgeKind.C_CODE.name
    end = next((number for number, edge in enumerate(edges) if edge is cut), None)
    if end is None:
        return _edge(cut)
    start = next((number for number in range(end, -1, -1) if not edges[number].kind.row.is_nameless), 0)
    return tuple(map(_edge, edges[start : end + 1]))


def _looped(cut: Edge | None, cycle: Sequence[Edge]) -> Hashable:
    """Return the reference to cut with the function that stores it, or with the functions in the loop, or its owner.

    A method of a base class makes the same loop in every subclass: its objects differ in class, not in cause. One line
    may store a method of each subclass.
    """
    if cut is None:
        return EdgeKind.C_CODE.name
    if cut.kind.row.is_nameless:
        return tuple(sorted({repr(_edge(edge)) for edge in cycle}))
    if cut.kind is EdgeKind.ATTRIBUTE and cut.file is not None and cut.line is not None:
        return cut.kind.name, cut.name, _portable(cut.file), _function_at(cut.file, cut.line)
    functions = sorted({repr(place) for edge in cycle for place in _functions(edge)})
    if functions:
        return cut.kind.name, cut.name, tuple(functions)
    return _edge(cut)


def _functions(edge: Edge) -> Iterator[Hashable]:
    for end in (edge.owner, edge.target):
        vertex = end
        while vertex is not None:
            if vertex.kind is VertexKind.FUNCTION:
                yield _vertex(vertex)
            vertex = vertex.inner


def _edge(edge: Edge) -> Hashable:
    owner, reader, file = _vertex(edge.owner), _vertex(edge.reader), _portable(edge.file)
    return kind_in_series(edge).name, name_in_series(edge), owner, reader, file


def _vertex(vertex: Vertex | None) -> Hashable:
    if vertex is None:
        return None
    name = "" if vertex.kind is VertexKind.CONTAINER else vertex.name_in_code or vertex.name
    if vertex.kind is VertexKind.MODULE:  # a module that each call makes has a number in its name
        name = _NUMBERS.sub("*", name)
    return vertex.kind.name, name, _portable(vertex.file), _vertex(vertex.inner)


def _function_at(file: str, line: int) -> str:
    """Return the qualified name of the function around a line: unlike the line, it outlives edits of other code."""
    around = [(first, name) for first, last, name in _scopes(file) if first <= line <= last]
    return max(around)[1] if around else ""


@functools.lru_cache(maxsize=128)
def _scopes(file: str) -> tuple[tuple[int, int, str], ...]:
    """Return the classes and functions of a file: the first line, the last line and the qualified name of each."""
    tree = parse("".join(linecache.getlines(file)))
    if tree is None:
        return ()
    found: list[tuple[int, int, str]] = []
    todo: list[tuple[ast.AST, str]] = [(tree, "")]
    while todo:
        node, outer = todo.pop()
        for child in ast.iter_child_nodes(node):
            name = outer
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                name = f"{outer}.{child.name}" if outer else child.name
                found.append((child.lineno, child.end_lineno or child.lineno, name))
            todo.append((child, name))
    return tuple(found)


@functools.cache
def _portable(file: str | None) -> str | None:
    """Return a file's name without the folder of the project or of its packages."""
    if file is None:
        return None
    parts = PurePath(file).parts
    at = next((at for at, part in enumerate(parts) if part in _PACKAGES), None)
    return place(file, None) if at is None else "/".join(parts[at + 1 :])
