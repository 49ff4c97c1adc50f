"""DataFrames that have exactly the columns of the schema."""

from __future__ import annotations

from typing import Any

import pandas as pd

from memwatch.capture.schema import DERIVED_BY_NAME, PANDAS_DTYPE


def table(name: str, columns: dict[str, Any], index: Any = None) -> pd.DataFrame:
    """Return a DataFrame with the columns and dtypes that the schema gives table `name`; others are left out."""
    wanted = DERIVED_BY_NAME[name].columns
    frame: pd.DataFrame = pd.DataFrame(
        {
            column.name: pd.Series(columns[column.name], dtype=PANDAS_DTYPE[column.kind], index=index)
            for column in wanted
        },
        index=index,
    )
    return frame
