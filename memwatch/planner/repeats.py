"""Ops that play the same part in repeated blocks: what is decided for one can be decided for all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from memwatch.planner.csr import Csr, IntArray
    from memwatch.planner.graph import Graph

_ROUNDS = 3  # how far, in edges, the surroundings of two ops must look alike


def op_classes(graph: Graph) -> IntArray:
    """Number the ops such that ops with alike surroundings get the same number.

    Weisfeiler-Leman colours: an op starts with its cost, effect and the sizes it makes and reads; each
    round adds the colours before and after it. Identical layers of a network end up with equal numbers,
    all but the ones at the ends.
    """
    nbytes = graph.buffer_nbytes
    read_sizes = graph.reads.sum_per_row(nbytes)
    made_sizes = graph.makes.sum_per_row(nbytes)
    rows = zip(
        graph.op_cost.tolist(), graph.op_effect.tolist(), graph.op_workspace_bytes.tolist(),
        read_sizes.tolist(), made_sizes.tolist(), graph.reads.lengths().tolist(), strict=True,
    )  # fmt: skip
    colours = _number(list(rows))
    for _ in range(_ROUNDS):
        before, after = _sums(graph.preds, colours), _sums(graph.succs, colours)
        colours = _number(list(zip(colours.tolist(), before.tolist(), after.tolist(), strict=True)))
    return colours


def _number(keys: list[tuple[object, ...]]) -> IntArray:
    numbers: dict[tuple[object, ...], int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _sums(neighbours: Csr, colours: IntArray) -> IntArray:
    """Sum a random weight per colour over the neighbours: equal for equal sets of colours."""
    weights = np.random.default_rng(0).integers(1, 2**31, size=int(colours.max(initial=0)) + 1)
    return neighbours.sum_per_row(weights[colours])
