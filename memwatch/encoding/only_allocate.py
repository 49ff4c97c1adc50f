"""Ops that allocate memory and write nothing; what is read from it later came from the host, or is garbage."""

from __future__ import annotations

from typing import Final

ONLY_ALLOCATE: Final = frozenset({"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"})
