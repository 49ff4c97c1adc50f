"""Pure functions from a capture to tables: what the peak is made of, when and where."""

from __future__ import annotations

from memwatch.analysis.frames import Frames

__all__ = ["Frames"]
