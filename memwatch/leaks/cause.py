"""Names for series of references and for causes of leaks.

References of one series differ only in an index, a key, a number or a size, such as two items of one list. The search
for leaks counts a series as one reference.

Leaks of one cause end by one edit of the program. The name of the cause is a digest of the references on the leak's
path that lead to the edit.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import linecache
import re
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from memwatch.kinds.edges import EdgeKind, VertexKind
from memwatch.kinds.leaks import LeakKind
from memwatch.program_text import parse
from memwatch.words.leaks import CAUSE
from memwatch.words.places import place

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from memwatch.kinds.edges import Edge, Vertex

_NUMBERS: Final = re.compile(r"\d+")
_PLAIN: Final = re.compile(r"[-'\"\d]")
"""The first character of a key that is a number or a text, as Python writes it. Other keys are other objects."""


def series_of(edge: Edge) -> Hashable:
    """Return a value that is equal for all references of one series."""
    return kind_in_series(edge), name_in_series(edge), sort_of(edge.owner), sort_of(edge.reader)


def kind_in_series(edge: Edge) -> EdgeKind:
    """Return the kind of a reference. The key of a dictionary has the kind of its value.

    One deletion ends both references. In the same way, the argument that a cache keeps has the kind of the result.
    """
    together = edge.kind.row.deleted_with
    return edge.kind if together is None else EdgeKind[together]


def name_in_series(edge: Edge) -> str | None:
    """Return the name that all references of a series have, or None if their names have nothing in common.

    In the name, a star stands for a key that is a number or a text, or for a number in the name of something else.
    """
    if edge.name is None or edge.kind.row.is_named_per_object:
        return None
    if edge.kind is EdgeKind.VALUE:
        return "*" if _PLAIN.match(edge.name) else None
    return _NUMBERS.sub("*", edge.name)


def sort_of(vertex: Vertex | None) -> Hashable:
    """Return a value that is equal for objects of one sort, such as the lists or threads that each call makes anew."""
    if vertex is None:
        return None
    name, file, dtype = (
        _NUMBERS.sub("*", text or "")
        for text in (vertex.name_in_code or vertex.name, vertex.file, vertex.dtype)
    )
    dimensions = None if vertex.shape is None else len(vertex.shape)
    return vertex.kind, name, file, dtype, dimensions, sort_of(vertex.inner)


_PACKAGES: Final = ("site-packages", "dist-packages")
_DIGITS: Final = 8
"""Hexadecimal digits of a cause's name. Two of 1,000 causes share a name with a probability of 1 in 8,600."""


def cause_of(kind: LeakKind, cut: Edge | None, edges: Sequence[Edge], cycle_length: int) -> str:
    """Return a short name for the cause of a leak.

    The name is the same in every process that runs the same code in the same folder, or within `files_relative_to` the
    same one. It contains no line numbers, so it stays the same when you edit other code of the file.

    Args:
        kind: the leak's kind.
        cut: the reference to cut.
        edges: the references from the root to the memory, or the references of the cycle and then to the memory.
        cycle_length: how many of the first edges are the cycle.
    """
    part = _held_from(cut, edges) if kind.is_reached else _looped(cut, edges[:cycle_length])
    # Whether gc can free a cycle depends on its other objects. The edit that ends the cycle is the same.
    return _short_name(kind if kind.is_reached else LeakKind.CYCLE, part)


def cause_of_thread(kind: LeakKind, work: Vertex) -> str:
    """Return a short name for the function of a thread that each run starts and does not end."""
    return _short_name(kind, _vertex(work))


def _short_name(kind: LeakKind, part: Hashable) -> str:
    digest = hashlib.sha256(repr((kind.value, part)).encode("utf-8", "backslashreplace"))
    return CAUSE.format(digest=digest.hexdigest()[:_DIGITS])


def _held_from(cut: Edge | None, edges: Sequence[Edge]) -> Hashable:
    """Return the reference to cut, with the references above it up to the nearest that has a name of its own."""
    if cut is None:
        return EdgeKind.C_CODE.name
    end = next((number for number, edge in enumerate(edges) if edge is cut), None)
    if end is None:
        return _edge(cut)
    start = next((number for number in range(end, -1, -1) if not edges[number].kind.row.is_nameless), 0)
    return tuple(map(_edge, edges[start : end + 1]))


def _looped(cut: Edge | None, cycle: Sequence[Edge]) -> Hashable:
    """Describe a cycle by the reference to cut.

    The first of these that is known tells two such references apart: the function whose line stores the attribute, the
    functions in the cycle, and the owner of the reference. The class of the owner comes last, because a method of a
    base class makes the same cycle in the objects of every subclass. If the reference has no name of its own, describe
    the cycle by all of its references.
    """
    if cut is None:
        return EdgeKind.C_CODE.name
    if cut.kind.row.is_nameless:
        return tuple(sorted({repr(_edge(edge)) for edge in cycle}))
    if cut.kind is EdgeKind.ATTRIBUTE and cut.file is not None and cut.line is not None:
        return cut.kind.name, cut.name, portable(cut.file), _function_at(cut.file, cut.line)
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
    owner, reader, file = _vertex(edge.owner), _vertex(edge.reader), portable(edge.file)
    return kind_in_series(edge).name, name_in_series(edge), owner, reader, file


def _vertex(vertex: Vertex | None) -> Hashable:
    if vertex is None:
        return None
    name = "" if vertex.kind is VertexKind.CONTAINER else vertex.name_in_code or vertex.name
    if vertex.kind is VertexKind.MODULE:  # if each call makes a module, their names differ in a number
        name = _NUMBERS.sub("*", name)
    return vertex.kind.name, name, portable(vertex.file), _vertex(vertex.inner)


def _function_at(file: str, line: int) -> str:
    """Return the qualified name of the innermost function or class around a line; empty at the level of the module."""
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


class _Root:
    """The folder from which causes name the program's files; None for the working directory."""

    folder: Path | None = None


@contextmanager
def files_relative_to(folder: Path) -> Iterator[None]:
    """Name the program's files from a folder in the causes of leaks, wherever the program was started."""
    before, _Root.folder = _Root.folder, folder.resolve()
    try:
        yield
    finally:
        _Root.folder = before


def portable(file: str | None) -> str | None:
    """Return the name of a file in a cause: relative to the folder of its packages, the root or the working directory.

    A file elsewhere keeps its whole name.
    """
    return None if file is None else _relative(file, _Root.folder)


@functools.cache
def _relative(file: str, root: Path | None) -> str:
    parts = PurePath(file).parts
    at = next((at for at, part in enumerate(parts) if part in _PACKAGES), None)
    if at is not None:
        return "/".join(parts[at + 1 :])
    if root is None:
        return place(file, None)
    try:
        return str(Path(file).resolve().relative_to(root))
    except (ValueError, OSError):
        return file
