"""Train within a limit of memory: try ways, measure each, keep the fastest that fits."""

from __future__ import annotations

from memwatch.fit.api import fit
from memwatch.fit.result import Fit

__all__ = ["Fit", "fit"]
