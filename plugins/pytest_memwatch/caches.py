"""Tell caches and machinery from leaks where the body runs once, so that growth cannot be seen."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from memwatch.leaks import Leak

_SLOTS: Final = (
    "value of key",
    "a result kept by lru_cache",
    "an argument kept by lru_cache",
    "global `",
    "closure cell `",
)
"""Holders that are filled on first use and read later: mappings, memoized functions, lazy constants."""

_CACHE_NAME: Final = re.compile(r"cache|memo|lazy|registry|pool", re.IGNORECASE)


def kept_by_cache(leak: Leak) -> bool:
    """Say whether one pass over this holder may well be the first fill of a cache.

    A list or a set that got longer is none, nor is an attribute that parks a tensor; and no cache keeps the
    autograd graph of what it holds.
    """
    if leak.kind != "retained" or leak.keeps_graph:
        return False
    return leak.reference.startswith(_SLOTS) or bool(_CACHE_NAME.search(leak.reference))


def made_by_machinery(leak: Leak) -> bool:
    """Say whether pytest or the import system closes the cycle, not the code under test.

    `with pytest.raises(...) as info` refers to the call it stands in. A module that is imported for the first
    time below a running call may keep that call's frames until gc comes by (torch.fx does, on the first
    optimizer step of a process).
    """
    return leak.kind == "cycle" and any(
        "ExceptionInfo" in line or "<frozen importlib" in line for line in leak.path
    )
