"""Many processes of one job side by side: captures of ranks, and of the processes that they started."""

from __future__ import annotations

from memwatch.ranks.ranks import Ranks, gather, merge

__all__ = ["Ranks", "gather", "merge"]
