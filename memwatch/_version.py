"""The version of memwatch: a leaf, so that any module may name it without importing the package's front."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
