"""Find the cycles that the code of torch closes. The program can neither avoid them nor break them.

`torch.jit.script` and `torch.utils._pytree` define functions or classes on each call that refer to themselves. A module
that `torch.fx` traces refers to its graph, which refers to the module. The configuration of a module that
`torch.ao.quantization` quantizes refers to the module.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from memwatch.kinds.edges import EdgeKind, VertexKind
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memwatch.kinds.edges import Edge, Vertex
    from memwatch.leaks.leak import Leak

_BUILT_BY_CLASS: Final = ("property", "getset_descriptor", "staticmethod", "classmethod")


def is_closed_by_torch(leak: Leak) -> bool:
    """Return True if the code of torch closes the cycle of a leak.

    If C++ holds a class that `torch.compile` defined for one call, gc cannot free the loops through the class. They
    are torch's own if nothing but the code of torch's classes and functions closes them.
    """
    cycle = leak.edges[: leak.cycle_length]
    if leak.kind == "uncollectable":
        return all(map(_is_fixed_in_code, cycle)) and _written_by_torch(cycle)
    return leak.kind == "cycle" and _written_by_torch(cycle)


def _is_fixed_in_code(edge: Edge) -> bool:
    """Return True for a reference that no other code can make or end.

    It belongs to a class, a function, a tuple, or the graph that the call made. A hook, an attribute of an object and
    an entry of another container are the work of any code.
    """
    owner = "" if edge.owner is None else edge.owner.name
    is_part = edge.kind is EdgeKind.ATTRIBUTE and not _set_anywhere(edge)
    is_of_tuple = edge.kind is EdgeKind.ITEM and owner.partition(" ")[0] == "tuple"
    return (
        is_part
        or is_of_tuple
        or edge.kind.row.is_written_in_file
        or edge.kind in (EdgeKind.CLASS_OF, EdgeKind.GRAD_FN)
    )


def _written_by_torch(cycle: Iterable[Edge]) -> bool:
    cycle = list(cycle)
    home = Path(torch.__file__).resolve().parent
    # an attribute of a class itself has no line in the code of its file
    places = [(edge.file, edge.line is not None or edge.kind.row.is_written_in_file) for edge in cycle]
    places += [(end.file, end.line is not None) for end in ends_of(cycle)]
    files = [Path(file).resolve() for file, placed in places if file and placed and file.endswith(".py")]
    if not files or not all(file.is_relative_to(home) for file in files):
        return False
    folders = {file.parent for file in files}
    by_torch = [_is_stored_in(folders, edge.name) for edge in cycle if _set_anywhere(edge)]
    closed_by_torch = any(edge.kind.row.is_written_in_file or _is_private_attribute(edge) for edge in cycle)
    return closed_by_torch and all(by_torch)


def _set_anywhere(edge: Edge) -> bool:
    """Return True for an attribute of an instance, which any code may set."""
    if edge.kind is not EdgeKind.ATTRIBUTE or edge.owner is None:
        return False
    return edge.owner.kind is not VertexKind.FUNCTION and edge.owner.name not in _BUILT_BY_CLASS


def _is_private_attribute(edge: Edge) -> bool:
    return _set_anywhere(edge) and (edge.name or "").startswith("_")


def _is_stored_in(folders: Iterable[Path], name: str | None) -> bool:
    """Return True if a statement in some folders of torch sets an attribute of this name.

    `Graph._owning_module` is set by `torch.fx`; an attribute that the program puts on a module of torch is not.
    """
    return name is not None and any(name in _stored_attributes(folder, name) for folder in folders)


@functools.cache
def _stored_attributes(folder: Path, name: str) -> frozenset[str]:
    """Return the attributes that statements set in the files of a folder that contain a name."""
    found: set[str] = set()
    for file in folder.glob("*.py"):
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
            nodes = ast.walk(ast.parse(text)) if name in text else ()
        except (OSError, SyntaxError, ValueError) as error:  # it may not be read, or is for another Python
            pass_on(error)
            continue
        found.update(
            node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        )
    return frozenset(found)


def ends_of(edges: Iterable[Edge]) -> Iterator[Vertex]:
    """Yield the objects at the ends of some references, each with the functions inside it."""
    for edge in edges:
        for end in (edge.owner, edge.target, edge.reader):
            yield from vertices_of(end)


def vertices_of(vertex: Vertex | None) -> Iterator[Vertex]:
    """Yield an object and the function inside it."""
    while vertex is not None:
        yield vertex
        vertex = vertex.inner
