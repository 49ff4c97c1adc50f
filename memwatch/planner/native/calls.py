"""Calls of the kernels in C++, with the arguments and results of their twins in Python."""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from memwatch.planner.csr import IntArray

    Tuple: TypeAlias = tuple[Any, ...]  # a named tuple of numbers and arrays

_REAL = struct.Struct("<d")
_WORD = struct.Struct("<q")


def words_of(value: Any) -> list[int]:
    """Return a value as C++ reads it: a number is one word, an array its address and size, a tuple its parts.

    The caller keeps the value alive while the words are in use.
    """
    if isinstance(value, tuple):
        return [word for part in value for word in words_of(part)]
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous, "kernels read arrays row after row"
        return [value.__array_interface__["data"][0], value.size]
    if isinstance(value, float):
        return [_WORD.unpack(_REAL.pack(value))[0]]
    return [int(value)]


class Calls:
    """The functions of a loaded library.

    Args:
        library: the result of `library.load`.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.duration_of.restype = ctypes.c_double

    def __call__(self, name: str, *args: Any) -> Any:
        """Call a function of the library. Numbers are passed as they are, tuples and arrays by a pointer to words."""
        function = getattr(self._library, name)
        if name != "duration_of":
            function.restype = ctypes.c_int64
        passed: list[Any] = []
        for value in args:
            if isinstance(value, (tuple, np.ndarray)):
                words = words_of(value)
                passed.append((ctypes.c_int64 * len(words))(*words))
            else:
                passed.append(ctypes.c_int64(int(value)))
        return function(*passed)


def sweep(library: Calls, model: Tuple, draft: Tuple, work: Tuple) -> int:
    """Call the twin of `recompute.draft.sweep`."""
    return int(library("sweep_schedule", model, draft, work))


def duration(library: Calls, model: Tuple, draft: Tuple) -> float:
    """Call the twin of `recompute.prune.duration`."""
    return float(library("duration_of", model, draft))


def fit(library: Calls, model: Tuple, draft: Tuple, style: Tuple) -> int:
    """Call the twin of `recompute.greedy.fit`."""
    return int(library("fit_schedule", model, draft, style))


def prune(library: Calls, model: Tuple, draft: Tuple, budget: int, rank: IntArray) -> None:
    """Call the twin of `recompute.prune.prune`."""
    library("prune_schedule", model, draft, budget, rank)


def polish(library: Calls, model: Tuple, draft: Tuple, effort: Tuple) -> None:
    """Call the twin of `recompute.polish.polish`."""
    library("polish_schedule", model, draft, effort)


def fill(
    library: Calls, costs: NDArray[np.float64], checkpoint: IntArray, saved: IntArray, slots: int
) -> tuple[NDArray[np.float64], IntArray]:
    """Call the twin of `recompute.chains.fill_rotor_table`."""
    shape = (len(costs), len(costs), slots + 1)
    best, choice = np.full(shape, np.inf), np.full(shape, -1, np.int64)
    library("fill_rotor", (costs, checkpoint, saved, slots, best, choice))
    return best, choice


def intervals(kind: Callable[..., Any], library: Calls, events: Any) -> tuple[Any, int, int, int]:
    """Call the twin of `peak.intervals`; `kind` is the named tuple that it returns."""
    capacity = len(events.step) + len(events.indptr) + 1
    out = kind(np.empty(capacity, np.int64), np.empty(capacity, np.int64), np.empty(capacity, np.int64))
    found = np.zeros(4, np.int64)
    library("list_intervals", events, out, found)
    fault, step, buffer, count = found.tolist()
    return (out if fault else kind(*(column[:count] for column in out))), fault, step, buffer


def peak_of(library: Calls, problem: Tuple, order: IntArray) -> int:
    """Call the twin of `order.problem.peak_of`."""
    return int(library("peak_of_order", problem, np.ascontiguousarray(order)))


def breadth_first(library: Calls, problem: Any) -> IntArray:
    """Call the twin of `order.lists.breadth_first`."""
    order = np.empty(problem.num_ops, np.int64)
    library("breadth_first_order", problem, order)
    return order


def depth_first(library: Calls, problem: Any, by_size: IntArray, below: IntArray) -> IntArray:
    """Call the twin of `order.lists.depth_first`."""
    order = np.empty(problem.num_ops, np.int64)
    library("depth_first_order", problem, by_size, below, order)
    return order


def least_growth(library: Calls, problem: Any, longest: int, widest: int) -> IntArray:
    """Call the twin of `order.lists.least_growth`."""
    order = np.empty(problem.num_ops, np.int64)
    library("least_growth_order", problem, longest, widest, order)
    return order


def beam_search(library: Calls, problem: Any, width: int, bits: NDArray[np.uint64]) -> IntArray:
    """Call the twin of `order.lists.beam_search`."""
    order = np.empty(problem.num_ops, np.int64)
    library("beam_order", problem, width, bits, order)
    return order


def anneal(  # noqa: PLR0917 (the arguments of its twin)
    library: Calls, problem: Tuple, order: IntArray, best: IntArray, state: NDArray[np.uint64], cooling: Tuple
) -> int:
    """Call the twin of `order.anneal.anneal`."""
    return int(library("anneal_order", problem, order, best, state, cooling))


def new_walk(empty_walk: Callable[..., Any], library: Calls, problem: Any, order: IntArray) -> Any:
    """Call the twin of `order.anneal.new_walk`; `empty_walk` makes the arrays that it fills."""
    walk = empty_walk(problem, order)
    library("walk_of_order", problem, walk)
    return walk


def ancestors(library: Calls, problem: Tuple, order: IntArray) -> NDArray[np.bool_]:
    """Call the twin of `order.exact.ancestors`."""
    before = np.zeros((len(order), len(order)), np.bool_)
    library("ancestors_of_ops", problem, np.ascontiguousarray(order), before)
    return before


def needs_matrix(kind: Callable[..., Any], library: Calls, problem: Any, before: NDArray[np.bool_]) -> Any:
    """Call the twin of `order.exact.needs_matrix`; `kind` is the named tuple that it returns."""
    shape = (len(problem.nbytes), problem.num_ops)
    needs = kind(np.empty(problem.num_ops, np.int64), np.zeros(shape, np.int64))
    library("needs_of_ops", problem, before, needs)
    return needs


def must_live(library: Calls, problem: Tuple, order: IntArray, chosen: IntArray) -> IntArray:
    """Call the twin of `order.bounds.must_live`."""
    total = np.empty(len(chosen), np.int64)
    library("must_live_bytes", problem, order, np.ascontiguousarray(chosen), total)
    return total


def advance(  # noqa: PLR0917 (the arguments of its twin)
    library: Calls, problem: Tuple, needs: Tuple, search: Tuple, below: int, max_expansions: int
) -> tuple[int, int]:
    """Call the twin of `order.exact.advance`."""
    found = np.zeros(2, np.int64)
    library("advance_search", problem, needs, search, below, max_expansions, found)
    status, path = found.tolist()
    return status, path
