"""Passes of the outermost loop, for programs without steps, backwards and modules: when one begins, by call stacks.

A loop shows as a jump back: a function runs an earlier line than before, or calls a function again that had returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import NONE
from memwatch.kinds.edges import EdgeKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.analysis.facts.call_stacks import CallStacks
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

_DEEPEST: Final = 256
"""Calls of a stack that are compared, from the outermost. A guess."""
_OF_OBJECTS: Final = (
    EdgeKind.ATTRIBUTE.value, EdgeKind.CLASS_ATTRIBUTE.value, EdgeKind.CLOSURE_CELL.value,
    EdgeKind.CELL_CONTENTS.value,
)  # fmt: skip
_LASTING: Final = (EdgeKind.CLASS_ATTRIBUTE.value, EdgeKind.CACHE_RESULT.value, EdgeKind.CACHE_ARGUMENT.value)
_ITEMS: Final = (EdgeKind.ITEM.value, EdgeKind.VALUE.value, EdgeKind.MEMBER.value, EdgeKind.KEY.value)
_SCRIPT: Final = "__main__"


def starts_of_passes(capture: Capture, call_stacks: CallStacks) -> IntArray:
    """Return when the passes of the outermost loop begin, in unix time, without the first pass."""
    ops = capture.tables["ops"]
    unique, which = np.unique(ops["stack"], return_inverse=True)
    frames = [call_stacks.frames(stack)[::-1] if stack != NONE else [] for stack in unique.tolist()]
    chosen = np.flatnonzero(ops["stack"] != NONE)
    for depth in range(_DEEPEST):
        lines = np.array([stack[depth].line if len(stack) > depth else 0 for stack in frames])
        here = lines[which[chosen]]
        if not here.any():
            break
        back = np.flatnonzero(np.diff(here) < 0)
        if len(back):
            starts_ns: IntArray = ops["start_ns"][chosen[back + 1]]
            return starts_ns
        found, count = np.unique(here, return_counts=True)
        chosen = chosen[here == found[np.argmax(np.where(found > 0, count, 0))]]
    return np.zeros(0, dtype=np.int64)


def made_to_be_kept(capture: Capture, allocations: Allocations) -> NDArray[np.bool_]:
    """Return the results of calls whose results samples saw in attributes, closures, or a container that is kept.

    A container is kept if it is a global, or if some result is alive when the block ends: results that wait in a list
    for their use are not. A variable that refers to a tensor itself has it until the next pass makes another.
    """
    edges, rows, stacks = capture.tables["edges"], capture.tables["holders"], capture.tables["ops"]["stack"]
    longer = edges["path"][edges["depth"] > 0]
    in_global = edges["path"][(edges["depth"] == 0) & (edges["kind"] == EdgeKind.GLOBAL.value)]
    of_objects = edges["path"][np.isin(edges["kind"], _OF_OBJECTS)]
    in_containers = edges["path"][(edges["depth"] > 0) & np.isin(edges["kind"], _ITEMS)]
    lasting = np.union1d(of_objects, np.intersect1d(in_global, longer))
    stack_of = np.full(len(allocations), NONE, dtype=np.int64)
    known = (allocations.op != NONE) & (allocations.op < len(stacks)) & (allocations.storage != NONE)
    stack_of[known] = stacks[allocations.op[known]]
    seen = stack_of[rows["storage"][np.isin(rows["path"], lasting)]]
    in_container = stack_of[rows["storage"][np.isin(rows["path"], in_containers)]]
    alive_at_end = stack_of[allocations.death_ns == NONE]
    kept = np.union1d(seen, np.intersect1d(in_container, alive_at_end))
    made: NDArray[np.bool_] = np.isin(stack_of, kept[kept != NONE])
    return made


def seen_in_lasting(capture: Capture, allocations: Allocations) -> NDArray[np.bool_]:
    """Return the allocations that samples saw in a class, a cache, or a container that is a global.

    No call's return ends that. A script's own globals do not count: they are its local variables.
    """
    edges, vertices, rows = (capture.tables[name] for name in ("edges", "vertices", "holders"))
    scripts = vertices["vertex"][
        np.array([name == _SCRIPT for name in capture.text(vertices["name"])], dtype=bool)
    ]
    is_global = (edges["depth"] == 0) & (edges["kind"] == EdgeKind.GLOBAL.value)
    in_modules = edges["path"][is_global & ~np.isin(edges["owner"], scripts)]
    containers = edges["path"][(edges["depth"] > 0) & np.isin(edges["kind"], _ITEMS)]
    lasting = np.union1d(
        edges["path"][np.isin(edges["kind"], _LASTING)], np.intersect1d(in_modules, containers)
    )
    seen = rows["storage"][np.isin(rows["path"], lasting)]
    found: NDArray[np.bool_] = np.isin(allocations.storage, seen[seen != NONE])
    return found
