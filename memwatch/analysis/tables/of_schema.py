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
    """Return a DataFrame with the columns and dtypes that the schema gives table `name`; others are left out.

    Args:
        name: the table.
        columns: the columns, or functions that make them: a column of a long run is large, and not made in vain.
        index: the index.
        wanted: the columns that are wanted, to be read alone: they may share the memory of facts. By default all.
        coded: whether a text of which many rows have the same is a category of pandas, a number in each row.
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
