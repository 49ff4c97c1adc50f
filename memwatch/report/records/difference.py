"""A comparison of two captures as a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memwatch.analysis.compare import Comparison
    from memwatch.report.records.schema import DifferenceRecord


def difference_record(compared: Comparison) -> DifferenceRecord:
    """Return peaks and sites, largest change first."""
    return {
        "device": compared.device,
        "old_peak_bytes": compared.old_peak_bytes,
        "new_peak_bytes": compared.new_peak_bytes,
        "sites": compared.sites.reset_index().to_dict("records"),
    }
