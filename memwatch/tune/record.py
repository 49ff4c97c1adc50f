"""A tuning as plain values for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memwatch.report.records.schema import TuneRecord
    from memwatch.tune.result import Tuning


def tune_record(tuning: Tuning) -> TuneRecord:
    """Return the settings, the best first, and the bound."""
    return {
        "device": tuning.reading.device,
        "allocator": tuning.allocator,
        "is_model": bool(tuning.model_because),
        "device_bytes": tuning.device_bytes,
        "lower_bound_bytes": tuning.lower_bound_bytes,
        "environment": tuning.environment,
        "settings": [
            {
                "settings": each.settings,
                "most_reserved_bytes": each.most_reserved_bytes,
                "most_allocated_bytes": each.most_allocated_bytes,
                "retries": each.retries,
                "fits": each.fits,
            }
            for each in tuning.outcomes
        ],
        "rejected": dict(tuning.rejected),
        "earlier": [
            {
                "line": each.line,
                "count": each.count,
                "nbytes": each.nbytes,
                "holder": each.holder,
                "most_reserved_bytes": each.most_reserved_bytes,
            }
            for each in tuning.earlier
        ],
    }
