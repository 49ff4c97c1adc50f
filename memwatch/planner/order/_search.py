"""Kernels: the containers of the exact search: a table of downsets, a stack, a heap, and a tree of paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.planner.csr import IntArray

# slots of Search.tally
STATES, NODES, STACKED, HEAPED, LEVEL, EXPANDED = 0, 1, 2, 3, 4, 5
EXPANDED_MARK = -1
_MASK = (1 << 64) - 1


class Search(NamedTuple):
    """Everything that the search keeps from call to call. A state is a downset with a number."""

    words: NDArray[np.uint64]  # state -> bits of the ops that have run
    live: IntArray  # state -> live bytes
    lowest_peak: IntArray  # state -> lowest peak on a way to it; EXPANDED_MARK once it was expanded
    node: IntArray  # state -> path that led to it
    parent: IntArray  # path -> path before its last op
    op: IntArray  # path -> its last op
    table: IntArray  # hash table with open addressing: state + 1, or 0 for a free slot
    stack: IntArray
    heap_key: IntArray
    heap_state: IntArray
    tally: IntArray


def new_search(num_ops: int, max_states: int) -> Search:
    """Return the containers of a search that may remember so many downsets."""
    words = (num_ops + 63) // 64
    slots = 1 << int(max_states * 2).bit_length()
    frontier = max_states * 2 + num_ops + 1

    def integers(length: int) -> IntArray:
        return np.zeros(length, dtype=np.int64)

    return Search(
        np.zeros((max_states + num_ops, words), dtype=np.uint64),
        integers(max_states + num_ops), integers(max_states + num_ops), integers(max_states + num_ops),
        integers(max_states * 4), integers(max_states * 4), integers(slots), integers(frontier),
        integers(frontier), integers(frontier), integers(8),
    )  # fmt: skip


def find(search: Search, words: NDArray[np.uint64]) -> int:
    """Return the state of a downset or, if it is new, -1 - slot with its slot in the table."""
    mixed = 1469598103934665603
    for word in words.tolist():
        mixed = ((mixed ^ word) * 0x9E3779B97F4A7C15) & _MASK
        mixed ^= mixed >> 29
    mask = len(search.table) - 1
    slot = mixed & mask
    while search.table[slot]:
        state = search.table[slot] - 1
        same = True
        for index in range(len(words)):
            same &= search.words[state, index] == words[index]
        if same:
            return int(state)
        slot = (slot + 1) & mask
    return -1 - slot


def remember(search: Search, words: NDArray[np.uint64], slot: int, live: int) -> int:
    """Add a new downset and return its state number."""
    state = search.tally[STATES]
    search.tally[STATES] += 1
    for index in range(len(words)):
        search.words[state, index] = words[index]
    search.live[state] = live
    search.table[slot] = state + 1
    return int(state)


def new_node(search: Search, parent: int, op: int) -> int:
    """Return a new path: another one and an op more."""
    node = search.tally[NODES]
    search.tally[NODES] += 1
    search.parent[node] = parent
    search.op[node] = op
    return int(node)


def heap_push(search: Search, key: int, state: int) -> None:
    """Queue a state until the level has risen to `key`."""
    hole = search.tally[HEAPED]
    search.tally[HEAPED] += 1
    while hole:
        above = (hole - 1) // 2
        if search.heap_key[above] <= key:
            break
        search.heap_key[hole], search.heap_state[hole] = search.heap_key[above], search.heap_state[above]
        hole = above
    search.heap_key[hole], search.heap_state[hole] = key, state


def heap_pop(search: Search) -> int:
    """Remove and return the state with the lowest key."""
    result = search.heap_state[0]
    search.tally[HEAPED] -= 1
    size = search.tally[HEAPED]
    key, state = search.heap_key[size], search.heap_state[size]
    hole = 0
    while 2 * hole + 1 < size:
        below = 2 * hole + 1
        if below + 1 < size and search.heap_key[below + 1] < search.heap_key[below]:
            below += 1
        if search.heap_key[below] >= key:
            break
        search.heap_key[hole], search.heap_state[hole] = search.heap_key[below], search.heap_state[below]
        hole = below
    search.heap_key[hole], search.heap_state[hole] = key, state
    return int(result)
