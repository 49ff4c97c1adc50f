"""Draw one leak with graphviz. No other module imports graphviz."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import graphviz  # type: ignore[import-untyped]

from memwatch.errors import DrawError
from memwatch.output_files import OutputError, write_whole
from memwatch.words.edges import reference_phrase, vertex_phrase
from memwatch.words.leaks import FROM_CYCLE, NO_DOT, NOT_DRAWN, ROOT

if TYPE_CHECKING:
    from os import PathLike

    from memwatch.kinds.edges import Edge

_WIDTH: Final = 60  # characters of a line in the picture; a guess


class Drawable(Protocol):
    """The parts of a leak that a picture needs. `memwatch.Leak` has them, and imports this module."""

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The references of the path, typed; empty if C code alone holds the tensors."""

    @property
    def path(self) -> tuple[str, ...]:
        """The path in words."""

    @property
    def cycle_length(self) -> int:
        """The number of edges, from the first, that form the cycle; 0 for a retention path."""

    @property
    def branch(self) -> int:
        """The number of the object of the cycle, from 0, at which the path to the tensor begins."""

    @property
    def tensor(self) -> str:
        """The description of the largest leaked tensor."""

    def headline(self) -> str:
        """Return the leak in one line."""


def graph_of(leak: Drawable) -> graphviz.Digraph:
    """Return a leak as a graph with a box for each object and an arrow for each reference.

    The arrow of a reference that only C++ knows is dashed. The last arrow of a cycle leads back to its first box. The
    path from a cycle to the tensor begins at the box with the number `branch`.
    """
    graph = graphviz.Digraph("leak", graph_attr={"label": _wrapped(leak.headline())})
    graph.attr("node", shape="box", fontname="monospace")
    graph.attr("edge", fontname="monospace")
    cycle = leak.cycle_length
    first = leak.edges[cycle - 1].target if cycle else None
    boxes = [ROOT if first is None else vertex_phrase(first), *map(_target, leak.edges)]
    for number, text in enumerate(boxes):
        if number != cycle or not cycle:  # the end of a cycle is its beginning
            graph.node(str(number), _wrapped(text))
    for number, edge in enumerate(leak.edges):
        leaves_cycle = cycle > 0 and number == cycle
        above = leak.branch if leaves_cycle else number
        below = 0 if number + 1 == cycle else number + 1
        phrase = reference_phrase(edge)
        words = FROM_CYCLE.format(line=phrase) if leaves_cycle else phrase
        style = "dashed" if edge.hidden else "solid"
        graph.edge(str(above), str(below), _wrapped(words), style=style)
    if not leak.edges:  # C code alone holds the tensors
        graph.node("1", _wrapped(leak.tensor))
        graph.edge("0", "1", _wrapped(leak.path[0]))
    return graph


def _target(edge: Edge) -> str:
    return "" if edge.target is None else vertex_phrase(edge.target)


def _wrapped(text: str) -> str:
    return str(graphviz.escape("\n".join(textwrap.wrap(text, _WIDTH))))


def draw_leak(leak: Drawable, path: str | PathLike[str]) -> None:
    """Write the picture of a leak; see :meth:`memwatch.leaks.Leak.draw`."""
    target = Path(path)
    kind = target.suffix.removeprefix(".") or "svg"
    try:
        picture = graph_of(leak).pipe(format=kind)
        write_whole(target, picture, force=True)
    except graphviz.ExecutableNotFound as error:
        raise DrawError(NO_DOT.format(target=target, leak=leak)) from error
    except (OutputError, OSError, ValueError, graphviz.CalledProcessError) as error:
        raise DrawError(NOT_DRAWN.format(target=target, error=error, leak=leak)) from error
