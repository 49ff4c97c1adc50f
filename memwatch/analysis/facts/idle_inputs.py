"""Inputs that the program keeps when it is done with them: the batches of a list, beside those that a loop drops.

What is given to a module is an input. A batch that is fetched ahead waits for its turn and is dropped after it; an item
of a list stays. So an input counts as kept where an iteration passes, after it was used, in which nothing uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import ACCESSES, NONE, ROLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.analysis.facts.iterations import KeptAcross
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

_OUTPUT: Final = ACCESSES.index("output")
_INPUT: Final = ROLES.index("input")
_FEWEST_ENDS: Final = 2
"""Ends of iterations between which a whole iteration lies."""


def idle_inputs(capture: Capture, allocations: Allocations, kept: KeptAcross) -> NDArray[np.bool_]:
    """Return which allocations are inputs that lie idle for an iteration after a use, as most that the same calls made.

    Args:
        capture: what was recorded.
        allocations: every piece of memory.
        kept: what is alive across iterations.
    """
    roles = capture.tables["roles"]
    is_input = np.zeros(allocations.named + 1, dtype=bool)  # the last is for allocations of no storage
    is_input[roles["storage"][roles["role"] == _INPUT]] = True
    inputs = np.flatnonzero(is_input[allocations.storage])
    idle = np.zeros(len(allocations), dtype=bool)
    if not len(inputs) or len(kept.ends_ns) < _FEWEST_ENDS:
        return idle
    ends_ns = np.sort(kept.ends_ns)
    by_graphs = _saved_for_long(capture, ends_ns)
    idle[inputs] = _is_idle_after_use(capture, allocations, inputs, ends_ns)
    idle &= kept.needed & ~np.isin(allocations.storage, by_graphs)
    made_by = np.append(capture.tables["ops"]["stack"], NONE)
    stacks = made_by[np.minimum(allocations.op[inputs], capture.rows("ops"))]
    for stack in np.unique(stacks[idle[inputs] & (stacks != NONE)]):
        alike = inputs[stacks == stack]
        idle[alike] |= 2 * np.count_nonzero(idle[alike]) > len(alike)
    return idle


def _saved_for_long(capture: Capture, ends_ns: IntArray) -> IntArray:
    """Return the storages that a graph keeps over a whole iteration."""
    packs, unpacks = capture.tables["packs"], capture.tables["unpacks"]
    let_go_ns = np.full(int(packs["pack"].max(initial=-1)) + 1, np.iinfo(np.int64).max)
    released = unpacks["released"] == 1
    let_go_ns[unpacks["pack"][released]] = unpacks["time_ns"][released]
    first, last = (
        np.searchsorted(ends_ns, time_ns) for time_ns in (packs["time_ns"], let_go_ns[packs["pack"]])
    )
    storages: IntArray = packs["storage"][last - first >= _FEWEST_ENDS]
    return storages


def _is_idle_after_use(
    capture: Capture, allocations: Allocations, rows: IntArray, ends_ns: IntArray
) -> NDArray[np.bool_]:
    """Return which of some allocations lie idle for a whole iteration after an op used them."""
    storages, uses = allocations.storage[rows], capture.tables["uses"]
    is_wanted = np.zeros(allocations.named + 1, dtype=bool)
    is_wanted[storages] = True
    used = is_wanted[uses["storage"]] & (uses["access"] != _OUTPUT)
    died = allocations.death_ns[rows] != NONE
    death_ns = np.where(died, allocations.death_ns[rows], np.iinfo(np.int64).max)
    # of each storage the iterations in which it is used, and then that in which it dies
    of = np.concatenate([uses["storage"][used], storages])
    iteration = np.searchsorted(
        ends_ns, np.concatenate([capture.tables["ops"]["start_ns"][uses["op"][used]], death_ns])
    )
    order = np.lexsort((iteration, of))
    of, iteration = of[order], iteration[order]
    waits = (of[1:] == of[:-1]) & (np.diff(iteration) >= _FEWEST_ENDS)
    found: NDArray[np.bool_] = np.isin(storages, of[:-1][waits])
    return found
