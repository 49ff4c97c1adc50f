"""The table `ways`: the changes that would lower the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.analysis.tables.of_schema import table

if TYPE_CHECKING:
    import pandas as pd

    from memwatch.analysis.ways.way import Way


def ways(found: list[Way]) -> pd.DataFrame:
    """Return the table `ways`.

    Args:
        found: the changes, in the order of the rows.
    """
    names = ("kind", "peak_bytes", "time_ratio", "basis", "decision", "lines", "modules")
    columns = {name: [getattr(way, name) for way in found] for name in names}
    return table("ways", {"way": [way.text for way in found], **columns})
