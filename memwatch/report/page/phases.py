"""Which phase of the program and which step each op was in, as stretches of ops: a step has a handful."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from memwatch.report.page.columns import pack_frame

if TYPE_CHECKING:
    from memwatch.report.page.columns import Block, Words
    from memwatch.report.source import Reading


def pack_phases(reading: Reading, words: Words) -> Block:
    """Return the first op of each stretch of ops of one phase and step, with both; the last reaches to the end."""
    ops = reading.part("ops", ["phase", "step"], coded=True)
    phase, step = ops["phase"].astype("category").cat.codes.to_numpy(), ops["step"].to_numpy()
    begins = np.ones(len(ops), dtype=bool)
    begins[1:] = (phase[1:] != phase[:-1]) | (step[1:] != step[:-1])
    first = np.flatnonzero(begins)
    stretches = pd.DataFrame(
        {"op": first, "phase": ops["phase"].iloc[first].astype(str).to_numpy(), "step": step[first]}
    )
    return pack_frame(stretches.astype({"phase": "str"}), words, delta=("op",))
