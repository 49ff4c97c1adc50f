"""The cause of a leak: the one reference of a path or a cycle that a person should cut, and a name for it.

References of one series differ only in an index, a key, a number or a size, such as two items of one list. The search
for leaks counts a series as one reference.

Leaks of one cause end by one edit of the program. The name of the cause is a digest of the references on the leak's
path that lead to the edit.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import itertools
import linecache
import re
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from memwatch._torch.modules import HOOK_TABLES
from memwatch.kinds.edges import Edge, EdgeKind, VertexKind
from memwatch.kinds.leaks import LeakKind
from memwatch.own_code import CodeOwner, code_owner
from memwatch.program_text import parse
from memwatch.words.edges import edge_phrase
from memwatch.words.leaks import CAUSE, holder_phrase
from memwatch.words.places import place

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from memwatch.heap.paths import Step
    from memwatch.kinds.edges import Vertex
    from memwatch.leaks.leak import Survivor

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


# Torch's tables of hooks on a retention path: `_forward_hooks` of a module, `_backward_hooks` of a tensor.


def hook_entry(path: Sequence[Edge]) -> int | None:
    """Return the place on a path of the first reference from a table of hooks to a hook, or None.

    A dictionary of the program's own may have numbers as keys too: what leads to the table tells them apart.
    """
    for at in range(1, len(path)):
        if is_hook_number(path[at]) and _leads_to_table(path[at - 1]):
            return at
    return None


def is_registration(cut: Edge, path: Sequence[Edge]) -> bool:
    """Return True if registering a hook made the reference to cut."""
    at = hook_entry(path)
    return cut.kind.row.is_hook_table or (at is not None and path[at] is cut)


def held_by_hook(cut: Edge | None, path: Sequence[Edge]) -> bool:
    """Return True if the reference to cut lies behind a hook that was registered before."""
    at = hook_entry(path)
    return at is not None and any(edge is cut for edge in path[at + 1 :])


def _leads_to_table(edge: Edge) -> bool:
    return edge.kind.row.is_hook_table or (
        edge.kind in (EdgeKind.ATTRIBUTE, EdgeKind.GLOBAL) and edge.name in HOOK_TABLES
    )


_UNTOLD: Final = 1 + max(kind.row.cut_rank or 0 for kind in EdgeKind)
_LONGEST: Final = 5  # references in the words for a holder; a guess


def edge_to_cut(steps: Sequence[Step]) -> Step | None:
    """Return the reference of a cycle that is easiest to edit, or None without a cycle."""
    return min(steps, key=_rank, default=None)


def cycle_key(steps: Sequence[Step], cut: Step) -> Hashable:
    """Return what is equal for survivors of one cycle, wherever it was entered: one edit ends it for all."""
    rank = _rank_of(cut.edge)
    return min((series_of(step.edge) for step in steps if _rank_of(step.edge) == rank), key=repr)


def edit_of(edge: Edge) -> Hashable:
    """Return an equal key for all references that one edit ends: those of one line, or else of one series."""
    if edge.kind is EdgeKind.ATTRIBUTE and edge.line is not None:  # for any subclass
        return edge.kind, edge.name, edge.file, edge.line
    return series_of(edge)


def edit_rank(step: Step) -> tuple[int, bool, bool, bool]:
    """Return how easy a reference of a cycle is to edit; the smallest is the easiest."""
    edge = step.edge
    # a coroutine of Python's, in which one of the program waits
    in_library = _is_of_suspended_call(edge) and not _is_programs(edge)
    # of a child's parent and the parent's list of children the first can be made weak; a list cannot
    to_container = edge.target is not None and edge.target.kind is VertexKind.CONTAINER
    # The caller has the argument of a function too, so the object stays alive if the reference is weak.
    return _rank_of(edge), in_library, to_container, not edge.of_argument


def _is_of_suspended_call(edge: Edge) -> bool:
    return edge.kind.row.is_call_variable and edge.owner is not None and edge.owner.kind.is_suspended_call


def _is_programs(edge: Edge) -> bool:
    return edge.file is not None and code_owner(edge.file) is CodeOwner.PROGRAM


def _is_await(edge: Edge) -> bool:
    """Return True for the reference from a coroutine of the program to the coroutine or future that it waits for."""
    is_coroutine = edge.owner is not None and edge.owner.kind is VertexKind.COROUTINE
    return edge.kind is EdgeKind.TEMPORARY and is_coroutine and _is_programs(edge)


def _rank(step: Step) -> tuple[tuple[int, bool, bool, bool], int]:
    rank = edit_rank(step)
    of_every_class = step.edge.kind in (EdgeKind.CLASS_DESCRIPTOR, EdgeKind.CLASS_BASES)
    return rank, 0 if of_every_class or rank[0] > _UNTOLD else step.start


def _rank_of_kind(kind: EdgeKind) -> int:
    return _UNTOLD if kind.row.cut_rank is None else kind.row.cut_rank


def _rank_of(edge: Edge) -> int:
    name = edge.name or ""
    if edge.kind.row.is_plumbing or (edge.kind is EdgeKind.ATTRIBUTE and name.startswith("__")):
        return _UNTOLD + 1
    # the arguments of `ctx.save_for_backward`; operators save only tensors that they need
    if edge.kind in (EdgeKind.SAVED, EdgeKind.UNPACK_HOOK):
        return _rank_of_kind(EdgeKind.SAVED) if is_saved_by_ctx(edge) else _UNTOLD
    if edge.kind is EdgeKind.ATTRIBUTE and _is_torchs(edge):
        return _rank_of_kind(EdgeKind.GLOBAL)
    if _is_await(edge):
        return _rank_of_kind(EdgeKind.LOCAL)
    if edge.kind is EdgeKind.VALUE and not _is_text_key(name):
        return _rank_of_kind(EdgeKind.KEY)
    return _rank_of_kind(edge.kind)


def _is_torchs(edge: Edge) -> bool:
    """Return True for a table of hooks, and for torch's wrapper of a hook. Nobody writes these references."""
    if edge.name in HOOK_TABLES:
        return True
    private = edge.owner is not None and edge.owner.name.startswith("_")
    return private and is_torchs_file(edge)


def is_torchs_file(edge: Edge) -> bool:
    """Return True for a reference that a file of torch makes."""
    return edge.file is not None and code_owner(edge.file) is CodeOwner.TORCH


def is_saved_by_ctx(edge: Edge) -> bool:
    """Return True for one of several tensors that a custom Function saved."""
    return edge.name == "tensors" and edge.position is not None


def _is_text_key(key: str) -> bool:
    return "'" in key


def _is_telling(step: Step) -> bool:
    return not is_hook_number(step.edge) and _rank_of(step.edge) < _UNTOLD


def is_hook_number(edge: Edge) -> bool:
    """Return True for an entry of torch's tables of hooks, which are keyed by running numbers."""
    is_table = edge.owner is not None and edge.owner.name == "OrderedDict"
    return edge.kind is EdgeKind.VALUE and is_table and (edge.name or "").isdigit()


def entry_step(steps: Sequence[Step], young: Sequence[bool]) -> Step | None:
    """Return the reference through which an object from before the block holds an object born in it.

    For a gradient whose parameter is only kept as a key of optimizer state, it is the reference to the parameter.

    Args:
        steps: the retention path.
        young: for each object of its chain, whether it was born in the block.
    """
    before: Step | None = None
    for step in steps:
        if young[step.end] and not (step.start and young[step.start]):
            is_of_key = step.edge.kind is EdgeKind.GRAD and before is not None
            return before if is_of_key and before.edge.kind is EdgeKind.KEY else step  # type: ignore[union-attr]
        before = step
    visible = [step for step in steps if not step.hidden]
    return visible[-1] if visible else (steps[0] if steps else None)


def holder_of(survivor: Survivor) -> tuple[str, tuple[Edge, ...]]:
    """Return who holds a survivor, in one phrase, and the references that the phrase names."""
    if not survivor.steps:
        edge = Edge(EdgeKind.C_CODE)
        return edge_phrase(edge), (edge,)
    if survivor.kind.is_reached:
        told = _along_path(survivor.steps, survivor.cut)
        return holder_phrase(told), tuple(edge for edge in told if edge is not None)
    edges = _in_cycle(survivor)
    return holder_phrase(edges, is_path=False), tuple(edges)


def container_of(survivor: Survivor) -> str:
    """Return the container that got an entry with the tensor, in one phrase; empty if the cut is no entry."""
    cut = survivor.cut
    if cut is None or not (cut.edge.kind.row.is_entry or _is_part(cut.edge)) or cut is survivor.steps[0]:
        return ""
    before = [*itertools.takewhile(lambda step: step is not cut, survivor.steps)]
    return holder_phrase(_along_path(before, None))


def _is_part(edge: Edge) -> bool:
    """Return True for a part of a list or dictionary of modules."""
    if edge.kind is not EdgeKind.SUBMODULE or edge.owner is None:
        return False
    classes = {edge.owner.name, *(name for name, _ in edge.owner.bases)}
    return (edge.name or "").isdigit() or "ModuleDict" in classes


def _in_cycle(survivor: Survivor) -> list[Edge]:
    """Return the reference to cut and the most telling others; the first one out of the cycle explains nothing."""
    steps = survivor.steps
    first = survivor.cut or steps[0]
    exits = steps[survivor.cycle_length : survivor.cycle_length + 1] if survivor.looped else []
    others = (
        step
        for step in steps
        if step is not first and all(step is not exit_ for exit_ in exits) and _is_telling(step)
    )
    return [first.edge, *(step.edge for step in sorted(others, key=_rank)[: _LONGEST - 1])]


def _along_path(steps: Sequence[Step], cut: Step | None) -> list[Edge | None]:
    """Return the references that Python shows, root first; None stands for those left out of a long path."""
    visible = [step.edge for step in steps if not step.hidden or step is cut] or [steps[0].edge]
    if len(visible) <= _LONGEST + 2:
        return list(visible)
    start, end = visible[:2], visible[-_LONGEST + 1 :]
    is_told = cut is None or any(cut.edge is edge for edge in (*start, *end))
    return [*start, *([] if is_told or cut is None else [cut.edge]), None, *end]


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
