"""memwatch: what the peak of a PyTorch program is made of, who holds it, and how low it could be."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from memwatch.errors import MemwatchError

__version__ = "0.1.0"

if TYPE_CHECKING:
    from memwatch.profile import Profile, profile
    from memwatch.reading import Reading, load

_HOMES = {
    "Profile": "memwatch.profile",
    "Reading": "memwatch.reading",
    "load": "memwatch.reading",
    "profile": "memwatch.profile",
}
"""Where each public name lives; it is imported when it is first used, so that `import memwatch` stays cheap."""

__all__ = ["MemwatchError", "Profile", "Reading", "load", "profile"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'memwatch' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
