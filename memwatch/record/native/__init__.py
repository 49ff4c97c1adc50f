"""The hot path in C++: the same rows as the Python recorder writes, for a fraction of the time.

`memwatch build` builds it for the torch that is installed; without it the Python recorder does the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memwatch.record.backend import Backend


def backend() -> Backend | None:
    """Return the native backend, or None where its library is not built or is switched off."""
    return None
