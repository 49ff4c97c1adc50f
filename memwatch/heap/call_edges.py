"""Name the references of calls: running ones, suspended ones, and those that a traceback keeps."""

from __future__ import annotations

from types import CellType, CoroutineType, FrameType, GeneratorType
from typing import TYPE_CHECKING, Any, Final

from memwatch.edges import Edge, EdgeKind, Vertex
from memwatch.heap.frames import read_locals
from memwatch.heap.vertices import frame_vertex, vertex_of
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Sequence

_FRAMES: Final = {id(GeneratorType): "gi_frame", id(CoroutineType): "cr_frame"}
"""The attribute with the call of a generator or coroutine, by the `id` of its class."""


def frame_edge(chain: Sequence[Any], at: int) -> tuple[Edge, int]:
    """Name a reference of a call."""
    frame: FrameType = chain[at]
    owner = frame_vertex(frame)
    if chain[at + 1] is frame.f_back:
        return Edge(EdgeKind.CALLER, owner=owner, file=owner.file, line=owner.line), 1
    return _variable(chain, at, frame, owner)


def suspended_edge(chain: Sequence[Any], at: int) -> tuple[Edge | None, int]:
    """Name a reference of a generator or coroutine.

    Up to Python 3.10 its frame stands between it and its variables, later where the program asked for the frame.
    """
    generator = chain[at]
    attribute = _FRAMES.get(id(type(generator)), "ag_frame")
    frame, owner = getattr(generator, attribute), vertex_of(generator)
    if frame is None:
        return Edge(EdgeKind.REFERENCE, owner=owner), 1
    if chain[at + 1] is not frame:
        return _variable(chain, at, frame, owner)
    if at + 2 == len(chain):
        return None, 1
    edge, covered = _variable(chain, at + 1, frame, owner)
    return edge, covered + 1


def traceback_edge(chain: Sequence[Any], at: int) -> tuple[Edge, int]:
    """Name a reference of a traceback: to the call, or to the call inside that."""
    is_call = type(chain[at + 1]) is FrameType
    kind = EdgeKind.TRACEBACK_CALL if is_call else EdgeKind.TRACEBACK_NEXT
    return Edge(kind, owner=vertex_of(chain[at])), 1


def _variable(chain: Sequence[Any], at: int, frame: FrameType, owner: Vertex) -> tuple[Edge, int]:
    """Name what a call refers to: a variable, straight or by a cell, or a value that has no name yet."""
    child = chain[at + 1]
    kind, found, covered = EdgeKind.TEMPORARY, None, 1
    for name, value in read_locals(frame).items():
        in_cell = type(child) is CellType and _cell_holds(child, value)
        if value is child or in_cell:
            kind, found = EdgeKind.LOCAL, name
            covered = 2 if in_cell and at + 2 < len(chain) else 1
            break
    return Edge(kind, found, owner=owner, file=frame.f_code.co_filename, line=frame.f_lineno), covered


def _cell_holds(cell: CellType, value: object) -> bool:
    try:
        return cell.cell_contents is value
    except ValueError as error:
        pass_on(error)
        return False
