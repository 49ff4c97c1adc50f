"""What stands in the way of a limit, as the lowest way that was tried shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch.report.facts import bytes_by, peak_instant
from memwatch.sizes import format_bytes
from memwatch.words import fit as words
from memwatch.words.storages import short_op

if TYPE_CHECKING:
    import pandas as pd

    from memwatch.fit.measurement import Measurement
    from memwatch.reading import Reading

_PARTS: Final = 3


def obstacle(reading: Reading, lowest: Measurement, limit_bytes: int) -> str:
    """Return why not even the lowest way fits: what lives before the step, the optimizer, an op's workspace.

    Args:
        reading: the recording of a step in the lowest way.
        lowest: what was measured of that way.
        limit_bytes: the limit.
    """
    at = peak_instant(reading)
    shares = bytes_by(reading.at_peak, "category")["nbytes"]
    baseline = format_bytes(reading.baseline_bytes)
    if reading.baseline_bytes > limit_bytes:
        rows = reading.storages
        before = rows[rows["counted"] & (rows["birth_event"] < 0)]
        return words.BASELINE.format(
            baseline=baseline, parts=_largest(bytes_by(before, "category")["nbytes"])
        )
    if at.phase == "optimizer":
        increase = format_bytes(reading.peak_bytes - reading.baseline_bytes)
        return words.OPTIMIZER.format(increase=increase, baseline=baseline)
    workspace = int(shares.get("workspace", 0))
    if lowest.peak_bytes is not None and lowest.peak_bytes - workspace <= limit_bytes and workspace:
        return words.WORKSPACE.format(op=short_op(at.op_name), workspace=format_bytes(workspace))
    return words.ACTIVATIONS.format(op=short_op(at.op_name) or "the step", parts=_largest(shares))


def _largest(shares: pd.Series[int]) -> str:
    return ", ".join(
        f"{category} {format_bytes(int(nbytes))}" for category, nbytes in shares.head(_PARTS).items()
    )
