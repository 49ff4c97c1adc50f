"""How often a block may search the variables of the running calls: what is made anew in each step is soon known."""

from __future__ import annotations

import weakref
from typing import Final

_MAX_SEARCHES: Final = 64
_MAX_SEARCHES_OF_CLASS: Final = 8
"""A loss or an optimizer that is made anew in each step is soon known as one of its class."""


class SearchBudget:
    """Count the searches for the sake of modules, optimizers and leaves, in total and by class.

    Classes are held weakly, and told by `id`: nothing of their metaclass runs.

    Args:
        most: the most searches of the block.
    """

    def __init__(self, most: int = _MAX_SEARCHES) -> None:
        self._count, self._most = 0, most
        self._of_class: dict[int, tuple[weakref.ref[type], int]] = {}

    def spend(self, cls: type) -> bool:
        """Return True if another search for something of a class may be made, and count it."""
        count = self._count_of(cls)
        if count >= _MAX_SEARCHES_OF_CLASS or self._count >= self._most:
            return False
        self._count += 1
        self._of_class[id(cls)] = (weakref.ref(cls), count + 1)
        return True

    def found(self, cls: type) -> None:
        """Count the searches for a class anew: they find what they look for."""
        self._of_class.pop(id(cls), None)

    def found_nothing(self, cls: type) -> None:
        """Search for nothing else of a class: no variable led to what one of it works on."""
        self._of_class[id(cls)] = (weakref.ref(cls), _MAX_SEARCHES_OF_CLASS)

    def _count_of(self, cls: type) -> int:
        known = self._of_class.get(id(cls))
        return known[1] if known is not None and known[0]() is cls else 0
