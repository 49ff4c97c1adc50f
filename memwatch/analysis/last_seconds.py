"""The last seconds of a program that was killed: how fast its memory grew until the last flush."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts

_LAST_NS: Final = 10_000_000_000


def last_seconds(facts: Facts) -> str:
    """Return a sentence about the growth in the last seconds that were recorded; empty where no samples are."""
    process, curve = facts.capture.tables["process"], facts.curve
    if len(process["time_ns"]) < 2:
        return ""
    end_ns = max(int(process["time_ns"][-1]), int(curve.time_ns[-1]))
    first = min(int(np.searchsorted(process["time_ns"], end_ns - _LAST_NS)), len(process["time_ns"]) - 2)
    since_ns, rss_bytes = int(process["time_ns"][first]), process["rss_bytes"]
    before = max(int(np.searchsorted(curve.time_ns, since_ns, side="right")) - 1, 0)
    live_bytes = int(curve.live_bytes[-1]) - int(curve.live_bytes[before])
    return (
        f"In the last {(end_ns - since_ns) / 1e9:.1f} s that were recorded live bytes on {facts.device} "
        f"{_changed(live_bytes)} to {format_bytes(int(curve.live_bytes[-1]))} and the memory of the process "
        f"{_changed(int(rss_bytes[-1]) - int(rss_bytes[first]))} to {format_bytes(int(rss_bytes[-1]))}; "
        f"the machine had {format_bytes(int(process['available_bytes'][-1]))} left."
    )


def _changed(nbytes: int) -> str:
    return f"{'grew' if nbytes >= 0 else 'fell'} by {format_bytes(abs(nbytes))}"
