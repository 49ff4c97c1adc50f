"""Decide whether a leak matches a pattern, so that the user's rules can ignore it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memwatch.leaks.leak import Leak


def matches(leak: Leak, pattern: str) -> bool:
    """Return True if the cause, the kind, the holder, the site, the tensor or a line of the path matches.

    Args:
        leak: the leak.
        pattern: shell-style pattern, or plain text that may stand anywhere in one of these texts.
    """
    texts = (leak.cause, leak.kind, leak.holder, leak.site or "", leak.tensor, *leak.path)
    return any(pattern in text or fnmatchcase(text, pattern) for text in texts)
