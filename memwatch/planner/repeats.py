"""Ops that play the same part in repeated blocks, such as the layers of a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from memwatch.planner.csr import Csr, IntArray
    from memwatch.planner.graph import Graph

_ROUNDS = 3  # how far, in edges, the surroundings of two ops must look alike


def op_classes(graph: Graph) -> IntArray:
    """Return a class number for each op; ops with similar surroundings have the same number.

    These are Weisfeiler-Leman colours. An op starts with a colour for its cost, its effect and the sizes of
    its buffers; each round adds the colours of the ops before and after it. Identical layers get equal
    numbers, except for the layers at both ends of the network.
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
    """Return sums of a random weight per colour over the neighbours: equal colours give equal sums."""
    weights = np.random.default_rng(0).integers(1, 2**31, size=int(colours.max(initial=0)) + 1)
    return neighbours.sum_per_row(weights[colours])
