"""Tell caches and machinery from leaks where the body runs once, so that growth cannot be seen."""

from __future__ import annotations

import re
from pathlib import Path
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
_TOOL: Final = re.compile(
    r"\bExceptionInfo\b|<frozen importlib|\b(Magic|Async|NonCallable)*(Mock|MagicProxy)\b"
)
"""What pytest, the import system and unittest.mock are made of, as it shows in a cycle."""
_PLACE: Final = re.compile(r"\(([^()]+\.py):\d+\)")
_WRITTEN: Final = (
    "closure cell `",
    "class attribute .",
    "__dict__ descriptor of class",
    "__weakref__ descriptor of class",
    "__mro__ or bases of class",
    "local `",
    "default argument `",
    "caller of ",
)
"""References that stand in the code of the file they name."""
_SET_ANYWHERE: Final = re.compile(r"attribute \.\S+ of (?!property\b|getset_descriptor\b|function\b)")
"""An attribute of an instance may be set by anyone, wherever its class stands."""


def kept_by_cache(leak: Leak) -> bool:
    """Say whether one pass over this holder may well be the first fill of a cache.

    A list or a set that got longer is none, nor is an attribute that parks a tensor; and no cache keeps the
    autograd graph of what it holds.
    """
    if leak.kind != "retained" or leak.keeps_graph:
        return False
    slot = leak.reference.startswith(_SLOTS) or "(maxlen " in leak.reference
    return slot or bool(_CACHE_NAME.search(leak.reference))


def made_by_machinery(leak: Leak) -> bool:
    """Say whether pytest, mock, the import system or torch closes the cycle, not the code under test.

    `with pytest.raises(...) as info` refers to the call it stands in. Every MagicMock refers to itself, and to
    the arguments it was called with. A module that is imported for the first
    time below a running call may keep that call's frames until gc comes by (torch.fx does, on the first
    optimizer step of a process). `torch.jit.script` and `torch.utils._pytree` define functions or classes on
    each call that refer to themselves.
    """
    if leak.kind != "cycle":
        return False
    loop = _loop(leak)
    return any(_TOOL.search(line) for line in loop) or _written_by_torch(loop)


def _loop(leak: Leak) -> list[str]:
    """Return the lines of the cycle itself, without the way from it to the tensor."""
    end = next((at for at, line in enumerate(leak.path) if line.startswith("(and from")), len(leak.path))
    return list(leak.path[:end])


def _written_by_torch(loop: list[str]) -> bool:
    import torch

    home = Path(torch.__file__).resolve().parent
    files = [Path(place).resolve() for line in loop for place in _PLACE.findall(line)]
    if not files or not all(file.is_relative_to(home) for file in files):
        return False
    written = any(line.startswith(_WRITTEN) for line in loop)
    return written and not any(_SET_ANYWHERE.match(line) for line in loop)
