"""The table `saved`: what autograd saved for backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from memwatch.analysis.tables.of_schema import table

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.saved_tensors import SavedTensors


def saved(facts: Facts, tensors: SavedTensors) -> pd.DataFrame:
    """Return the table `saved`."""
    columns = {**vars(tensors), "at_peak": tensors.held_at(facts.op_at_peak)}
    return table("saved", columns, index=pd.RangeIndex(len(tensors), name="pack"))
