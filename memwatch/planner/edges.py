"""Precedence: which op must run before which.

There are three reasons: an op reads what another makes, an op must read a buffer before another mutates it, and ops
with effects keep their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.csr import Csr, IntArray
from memwatch.planner.op import Effect

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Ops of one chain keep program order. An unknown effect may draw random numbers and may act on the host, so it is in
# both chains.
EFFECT_CHAINS = (
    (Effect.RNG, Effect.UNKNOWN),
    (Effect.COLLECTIVE, Effect.ITEM, Effect.UNKNOWN),
)


def precedence(  # noqa: PLR0917 (the arrays of a Graph that does not exist yet)
    reads: Csr,
    read_version: IntArray,
    makes: Csr,
    writes: Csr,
    write_version: IntArray,
    effect: NDArray[np.int8],
    num_buffers: int,
) -> Csr:
    """Return the ops that must run before each op.

    A reader of version k of a buffer runs after the op that wrote version k and before the op that writes
    version k + 1. Writers of a buffer run in order. RNG ops keep their order, and so do all other ops with an
    effect; an op with an unknown effect keeps its place in both of these chains.
    """
    num_ops = len(reads)
    first_slot = np.concatenate(([0], np.cumsum(1 + np.bincount(writes.indices, minlength=num_buffers))))
    # one slot per (buffer, version): the op that wrote it, -1 for the first version of an external buffer
    writer = np.full(int(first_slot[-1]), -1, dtype=np.int64)
    writer[first_slot[makes.indices]] = makes.row_ids()
    written_slot = first_slot[writes.indices] + write_version
    writer[written_slot] = writes.row_ids()

    read_slot = first_slot[reads.indices] + read_version
    is_last_version = read_slot + 1 == first_slot[reads.indices + 1]
    next_writer = np.where(is_last_version, -1, writer[np.minimum(read_slot + 1, len(writer) - 1)])
    readers = reads.row_ids()
    before = [writer[read_slot], readers, writer[written_slot - 1]]
    after = [readers, next_writer, writes.row_ids()]
    for kinds in EFFECT_CHAINS:
        chain = np.flatnonzero(np.isin(effect, kinds))
        before.append(chain[:-1])
        after.append(chain[1:])
    source, target = np.concatenate(before), np.concatenate(after)
    real = (
        (source >= 0) & (target >= 0) & (source != target)
    )  # an op that reads what it mutates does not wait for itself
    return Csr.from_pairs(target[real], source[real], num_ops)
