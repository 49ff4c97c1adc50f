"""The tables `timeline` and `uses`: what happened, event by event and op by op."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from memwatch.analysis.tables.of_schema import table
from memwatch.capture.schema import ACCESSES

if TYPE_CHECKING:
    from collections.abc import Collection

    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.packed import IntArray


def timeline(
    facts: Facts,
    rows: IntArray | None = None,
    wanted: Collection[str] | None = None,
    *,
    coded: bool = False,
) -> pd.DataFrame:
    """Return the table `timeline`, or some of its rows and columns."""
    curve, chosen = facts.curve, slice(None) if rows is None else rows
    columns = {
        "time_ns": lambda: facts.since_start(curve.time_ns[chosen]),
        "op": lambda: facts.ops_at(chosen),
        "storage": lambda: curve.allocation[chosen],
        "delta_bytes": lambda: curve.delta_bytes[chosen],
        "live_bytes": lambda: curve.live_bytes[chosen],
    }
    index = pd.RangeIndex(len(curve.time_ns)) if rows is None else pd.Index(rows)
    return table("timeline", columns, index=index, wanted=wanted, coded=coded)


def uses(
    facts: Facts,
    rows: IntArray | None = None,
    wanted: Collection[str] | None = None,
    *,
    coded: bool = False,
) -> pd.DataFrame:
    """Return the table `uses`, or some of its rows and columns."""
    recorded, chosen = facts.capture.tables["uses"], slice(None) if rows is None else rows
    columns = {
        "op": lambda: recorded["op"][chosen],
        "storage": lambda: recorded["storage"][chosen],
        "access": lambda: np.array(ACCESSES, dtype=object)[recorded["access"][chosen]],
    }
    index = None if rows is None else pd.Index(rows)
    return table("uses", columns, index=index, wanted=wanted, coded=coded)
