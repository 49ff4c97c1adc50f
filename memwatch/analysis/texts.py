"""The dtype of texts in tables: Python's own strings, whatever else is installed.

Where pyarrow is installed pandas keeps texts in Arrow, which holds no name with undecodable bytes, as files may have.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd


def _dtype() -> Any:
    if int(pd.__version__.partition(".")[0]) < 3:  # texts are objects there
        return "str"
    return pd.StringDtype("python", na_value=np.nan)


TEXT: Final = _dtype()
