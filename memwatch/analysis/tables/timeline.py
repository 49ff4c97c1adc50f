"""The tables `timeline` and `uses`: what happened, event by event and op by op."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.analysis.tables.of_schema import table
from memwatch.capture.schema import ACCESSES

if TYPE_CHECKING:
    import pandas as pd

    from memwatch.analysis.facts.facts import Facts


def timeline(facts: Facts) -> pd.DataFrame:
    """Return the table `timeline`."""
    curve = facts.curve
    return table(
        "timeline",
        {
            "time_ns": facts.since_start(curve.time_ns),
            "op": facts.op_of_event,
            "storage": curve.allocation,
            "delta_bytes": curve.delta_bytes,
            "live_bytes": curve.live_bytes,
        },
    )


def uses(facts: Facts) -> pd.DataFrame:
    """Return the table `uses`."""
    rows = facts.capture.tables["uses"]
    access = np.array(ACCESSES, dtype=object)[rows["access"]]
    return table("uses", {"op": rows["op"], "storage": rows["storage"], "access": access})
