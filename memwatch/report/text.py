"""Names from a capture as text that is safe to print; see `memwatch.visible_text`."""

from __future__ import annotations

from memwatch.visible_text import UNPRINTABLE, visible

__all__ = ["UNPRINTABLE", "visible"]
