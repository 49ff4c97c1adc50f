"""Which ops used what is alive at the peak, for the chart of a storage's life.

Of all other storages the page knows the first and the last use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypedDict

import numpy as np

from memwatch.report.page.columns import Packed, pack_ints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.report.source import Reading

MOST_USES: Final = 100_000
"""So many uses are packed, those of the largest storages first."""


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
    uses = reading.part("uses", ["op", "storage"])
    mine = uses[uses["storage"].isin(list(storages))].drop_duplicates().sort_values(["storage", "op"])
    counts = mine["storage"].value_counts().reindex(list(storages), fill_value=0)
    shown = counts.index[counts.cumsum() <= MOST_USES]
    by_storage = {int(storage): rows.to_numpy() for storage, rows in mine.groupby("storage")["op"]}
    lists = [by_storage.get(storage, np.zeros(0, dtype=np.int64)) for storage in shown.tolist()]
    return Uses(
        storage=pack_ints(shown.to_numpy(), delta=True),
        count=pack_ints([len(ops) for ops in lists]),
        op=pack_ints(np.concatenate(lists) if lists else [], delta=True),
    )
