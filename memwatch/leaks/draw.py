"""Draw one leak with graphviz."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Final

import graphviz  # type: ignore[import-untyped]

from memwatch.errors import MemwatchError
from memwatch.leaks.leak import FROM_CYCLE

if TYPE_CHECKING:
    from os import PathLike

    from memwatch.leaks.leak import Leak

_HIDDEN: Final = "  [C++, unseen by gc]"
_WIDTH: Final = 60  # characters of a line in the picture


class DrawError(MemwatchError):
    """The picture of a leak could not be made."""


def graph_of(leak: Leak) -> graphviz.Digraph:
    """Return a leak as a graph: an object per box, a reference per arrow, those only C++ knows dashed.

    A cycle is drawn closed; what hangs on it starts at the box its words name.
    """
    graph = graphviz.Digraph("leak", graph_attr={"label": _wrapped(leak.headline())})
    graph.attr("node", shape="box", fontname="monospace")
    graph.attr("edge", fontname="monospace")
    way = next((at for at, line in enumerate(leak.path) if line.startswith(FROM_CYCLE)), len(leak.path))
    boxes = ["root" if leak.kind == "retained" else _target(leak.path[way - 1]), *map(_target, leak.path)]
    closed = leak.kind != "retained"
    for number, text in enumerate(boxes):
        if not (closed and number == way):  # the end of a cycle is its beginning
            graph.node(str(number), _wrapped(text))
    for number, line in enumerate(leak.path):
        above = number
        if closed and number == way:
            above = next((at for at in range(way) if boxes[at].removeprefix("call of ") in line), 0)
        below = 0 if closed and number + 1 == way else number + 1
        words = line.rpartition(" -> ")[0] or line
        style = "dashed" if line.endswith(_HIDDEN) else "solid"
        graph.edge(str(above), str(below), _wrapped(words), style=style)
    return graph


def _target(line: str) -> str:
    return line.removesuffix(_HIDDEN).rpartition(" -> ")[2]


def _wrapped(text: str) -> str:
    return str(graphviz.escape("\n".join(textwrap.wrap(text, _WIDTH))))


def draw_leak(leak: Leak, path: str | PathLike[str]) -> None:
    """Write the picture of a leak; see :meth:`memwatch.leaks.Leak.draw`."""
    target = Path(path)
    kind = target.suffix.removeprefix(".") or "svg"
    try:
        picture = graph_of(leak).pipe(format=kind)
        target.write_bytes(picture)
    except graphviz.ExecutableNotFound as error:
        raise DrawError(
            f"cannot draw {target}: graphviz's program 'dot' is not installed (apt install graphviz, "
            f"brew install graphviz). The leak as text:\n{leak}"
        ) from error
    except (OSError, ValueError, graphviz.CalledProcessError) as error:
        raise DrawError(f"cannot draw {target}: {error}. The leak as text:\n{leak}") from error
