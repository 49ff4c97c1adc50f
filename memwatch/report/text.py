"""Names from a capture as text that is safe to print; see `memwatch.text`."""

from __future__ import annotations

from memwatch.text import UNPRINTABLE, visible

__all__ = ["UNPRINTABLE", "visible"]
