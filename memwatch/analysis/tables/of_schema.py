"""DataFrames that have exactly the columns of the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from memwatch.analysis.facts.coded import Coded
from memwatch.analysis.texts import TEXT
from memwatch.capture.derived import DERIVED_BY_NAME, PANDAS_DTYPE

if TYPE_CHECKING:
    from collections.abc import Collection

    from memwatch.capture.schema import Kind


def table(
    name: str,
    columns: dict[str, Any],
    index: Any = None,
    wanted: Collection[str] | None = None,
    *,
    coded: bool = False,
) -> pd.DataFrame:
    """Return a DataFrame with the columns and dtypes that the schema defines for table `name`.

    Other columns are dropped.

    Args:
        name: the table.
        columns: the columns, or functions that compute them. A column of a long run is large, so it is computed only
            if it is wanted.
        index: the index.
        wanted: the columns to return, for reading only: they may share memory with the facts. By default all.
        coded: whether a text column with many equal values becomes a category of pandas, with one number per row.
    """
    copy = None if wanted is None else False
    frame: pd.DataFrame = pd.DataFrame(
        {
            column.name: _series(columns[column.name], _dtype(column.kind), index, copy, coded=coded)
            for column in DERIVED_BY_NAME[name].columns
            if wanted is None or column.name in wanted
        },
        index=index,
        copy=copy,
    )
    return frame


def _dtype(kind: Kind) -> Any:
    return TEXT if kind == "text" else PANDAS_DTYPE[kind]


def _series(column: Any, dtype: Any, index: Any, copy: bool | None, *, coded: bool) -> Any:
    made = column() if callable(column) else column
    if coded and isinstance(made, Coded):
        return pd.Series(made.categorical(), index=index, copy=copy)
    return pd.Series(
        np.asarray(made) if isinstance(made, Coded) else made, dtype=dtype, index=index, copy=copy
    )
