"""The fingerprint of a program, by which a plan recognises the program it was made for."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from memwatch.planner.graph import Graph


def fingerprint(graph: Graph) -> str:
    """Return a hash of everything a plan depends on: ops, buffers, their sizes, and who uses what.

    Costs are left out. They are measured times, which differ in every recording of the same program, and a
    plan stays valid with other costs.
    """
    digest = hashlib.sha256()
    digest.update(repr(graph.op_names).encode())
    arrays = (
        graph.op_effect, graph.buffer_nbytes, graph.buffer_producer, graph.buffer_pinned,
        graph.buffer_freeable, graph.reads.indptr, graph.reads.indices, graph.makes.indptr,
        graph.makes.indices, graph.writes.indptr, graph.writes.indices,
    )  # fmt: skip
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes() + b"|")
    return digest.hexdigest()
