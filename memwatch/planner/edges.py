"""Which op must run before which: data, anti-dependencies of mutation, order of effects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.planner.csr import Csr, IntArray
from memwatch.planner.op import Effect

if TYPE_CHECKING:
    from numpy.typing import NDArray

# ops of one chain keep program order; an unknown effect may touch the generator and the host alike
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
    """Derive the precedence edges of a program.

    A reader of version k runs after the op that wrote version k and before the op that writes version
    k + 1; writers run in order; RNG ops run in generator order; all other effects run in program order,
    and an unknown effect is ordered with both.

    Returns:
        Op -> ops that must run before it.
    """
    num_ops = len(reads)
    first_slot = np.concatenate(([0], np.cumsum(1 + np.bincount(writes.indices, minlength=num_buffers))))
    # one slot per (buffer, version): who wrote it, -1 for the first version of an external buffer
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
    real = (source >= 0) & (target >= 0) & (source != target)  # an op may read what it mutates
    return Csr.from_pairs(target[real], source[real], num_ops)
