"""List the ops that used each storage that is alive at the peak, for the chart of a storage's life.

For all other storages the page has only the first and the last use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypedDict

import numpy as np
import pandas as pd

from memwatch.report.page.columns import Packed, pack_ints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.report.source import Reading

MOST_USES: Final = 100_000
"""So many uses are packed, those of the largest storages first."""
_OP_BITS: Final = 32
_OP_MASK: Final = (1 << _OP_BITS) - 1
"""A use as one number: storage and op, which sort as a pair does."""


class Uses(TypedDict):
    """The ops that used each storage, in order."""

    storage: Packed
    count: Packed
    """How many ops used it: so many numbers of `op` are its."""

    op: Packed


def pack_uses(reading: Reading, storages: Sequence[int]) -> Uses:
    """Return the ops that used these storages, as many as there is room for.

    Args:
        reading: the profile.
        storages: numbers of storages, the most important first.
    """
    wanted = np.asarray(storages, dtype=np.int64)
    # one column after the other: nearly all uses of a long run are of parameters, which are alive at the peak
    used = reading.part("uses", ["storage"])["storage"].to_numpy()
    rows = pd.Index(np.flatnonzero(np.isin(used, wanted)))
    del used
    keys = reading.part("uses", ["storage"], rows)["storage"].to_numpy() << _OP_BITS
    keys |= reading.part("uses", ["op"], rows)["op"].to_numpy()
    keys = np.unique(keys)
    starts = np.searchsorted(keys, wanted << _OP_BITS)
    ends = np.searchsorted(keys, (wanted + 1) << _OP_BITS)
    shown = np.flatnonzero(np.cumsum(ends - starts) <= MOST_USES)
    lists = [keys[starts[each] : ends[each]] & _OP_MASK for each in shown.tolist()]
    return Uses(
        storage=pack_ints(wanted[shown], delta=True),
        count=pack_ints([len(ops) for ops in lists]),
        op=pack_ints(np.concatenate(lists) if lists else [], delta=True),
    )
