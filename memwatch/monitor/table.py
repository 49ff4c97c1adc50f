"""The table that `process_memory` returns: a DataFrame whose text has readable bytes.

It has a module of its own, because it imports pandas, and `memwatch ps` does without.
"""

from __future__ import annotations

from typing import Any, Final

import pandas as pd

from memwatch.sizes import format_bytes

_BYTES: Final = ("nbytes", "private_nbytes")
_COLUMNS: Final = ("row", *_BYTES, "how")
_TITLES: Final = {"nbytes": "bytes", "private_nbytes": "private", "how": "how it is known"}


class ProcessTable(pd.DataFrame):
    """The rows of a process. All that pandas makes of it is a plain DataFrame, with the text of one.

    pandas leaves out the columns in the middle if a table is wide, and these have the bytes.
    """

    @property
    def _constructor(self) -> Any:
        return pd.DataFrame

    def __repr__(self) -> str:
        """Return the rows as `memwatch ps` prints them, or the text of pandas if a column is missing."""
        if not all(isinstance(name, str) for name in self.columns) or not set(_COLUMNS) <= set(self.columns):
            return super().__repr__()
        names = [name for name in self.columns if name != "how"] + ["how"]
        cells = [[_TITLES.get(name, name if name != "row" else "") for name in names]]
        cells += [list(map(_cell, values)) for values in self[names].itertuples(index=False, name=None)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = []
        for first, *sizes, how in cells:
            shown = "".join(f" {size:>{width}}" for size, width in zip(sizes, widths[1:-1], strict=True))
            lines.append(f"{first:{widths[0]}}{shown}  {how}")
        return "\n".join(lines)


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else format_bytes(int(value))
