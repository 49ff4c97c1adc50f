"""Compare two captures: how the peak changed, and which sites made the change."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pandas as pd

if TYPE_CHECKING:
    from memwatch.analysis.frames import Frames

_NAMED: Final = ("parameter", "buffer", "gradient", "optimizer state")
"""Categories whose names mean the same in both captures; the others are told by op and function."""


@dataclass(frozen=True)
class Comparison:
    """Two captures side by side.

    Attributes:
        old_peak_bytes: most live bytes of the old capture.
        new_peak_bytes: most live bytes of the new one.
        sites: what was alive at either peak. One row per (category, module, site), largest change
            first; columns `old_bytes`, `new_bytes`, `delta_bytes` (bytes), `old_count`,
            `new_count` (storages).
    """

    old_peak_bytes: int
    new_peak_bytes: int
    sites: pd.DataFrame

    @property
    def growth_ratio(self) -> float:
        """Growth of the peak: 0.05 is 5 % more, negative is less, infinite if there was nothing before."""
        if self.new_peak_bytes == self.old_peak_bytes:
            return 0.0
        return self.new_peak_bytes / self.old_peak_bytes - 1 if self.old_peak_bytes else float("inf")


def compare(old: Frames, new: Frames) -> Comparison:
    """Compare the peaks of two captures.

    A site is a parameter's, gradient's or state's name, else an op and the function that called it: an
    edited file moves lines, so they would make everything look changed.

    Args:
        old: the capture to compare with.
        new: the capture that is judged.

    Returns:
        Peaks and sites.
    """
    before, after = _by_site(old), _by_site(new)
    sites = before.add_prefix("old_").join(after.add_prefix("new_"), how="outer").fillna(0).astype("int64")
    sites["delta_bytes"] = sites["new_bytes"] - sites["old_bytes"]
    sites = sites[["old_bytes", "new_bytes", "delta_bytes", "old_count", "new_count"]]
    order = sites["delta_bytes"].abs().sort_values(ascending=False, kind="stable").index
    return Comparison(_peak_bytes(old), _peak_bytes(new), sites.loc[order])


def _peak_bytes(frames: Frames) -> int:
    return int(frames.curve.live_bytes[frames.curve.peak_event])


def _by_site(frames: Frames) -> pd.DataFrame:
    peak = frames.at_peak
    stacks = frames.storages.loc[peak.index, "stack"].tolist()
    functions = frames.places.function_of_stack
    rows = zip(peak["category"], peak["name"], peak["op_name"], peak["line"], stacks, strict=True)
    site = [
        name if category in _NAMED else _site(op_name, line, functions[stack] if stack >= 0 else "") or name
        for category, name, op_name, line, stack in rows
    ]
    keys = [peak["category"], peak["module"], pd.Series(site, index=peak.index, name="site", dtype="str")]
    groups = peak["nbytes"].groupby(keys, sort=False)
    counted: pd.DataFrame = pd.concat({"bytes": groups.sum(), "count": groups.size()}, axis=1)
    return counted


def _site(op_name: str, line: str, function: str) -> str:
    file = os.path.basename(line.rpartition(":")[0])
    return " in ".join(part for part in (op_name, f"{function} ({file})" if file else "") if part)
