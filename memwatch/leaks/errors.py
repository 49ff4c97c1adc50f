"""What goes wrong when a leak is shown."""

from __future__ import annotations

from memwatch.errors import MemwatchError


class DrawError(MemwatchError):
    """The picture of a leak could not be made."""
