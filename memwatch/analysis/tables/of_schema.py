"""DataFrames that have exactly the columns of the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from memwatch.capture.derived import DERIVED_BY_NAME, PANDAS_DTYPE

if TYPE_CHECKING:
    from collections.abc import Collection


def table(
    name: str, columns: dict[str, Any], index: Any = None, wanted: Collection[str] | None = None
) -> pd.DataFrame:
    """Return a DataFrame with the columns and dtypes that the schema gives table `name`; others are left out.

    Args:
        name: the table.
        columns: the columns, or functions that make them: a column of a long run is large, and not made in vain.
        index: the index.
        wanted: the columns that are wanted, to be read alone: they may share the memory of facts. By default all.
    """
    copy = None if wanted is None else False
    frame: pd.DataFrame = pd.DataFrame(
        {
            column.name: pd.Series(
                _made(columns[column.name]), dtype=PANDAS_DTYPE[column.kind], index=index, copy=copy
            )
            for column in DERIVED_BY_NAME[name].columns
            if wanted is None or column.name in wanted
        },
        index=index,
        copy=copy,
    )
    return frame


def _made(column: Any) -> Any:
    return column() if callable(column) else column
