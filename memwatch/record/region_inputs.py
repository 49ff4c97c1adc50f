"""The tensors that a checkpointed region is given: they are the same objects when it runs again.

Without hooks autograd gives back the very tensor that it saved. Under hooks, such as those of memwatch, it makes a new
one at each unpacking: code that asks `key is value`, as multi-head attention does, would go another way than before.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(eq=False)
class RegionInputs:
    """What a region was given, without keeping it alive."""

    _tensors: list[weakref.ref[Any] | None] = field(default_factory=list)
    _first: list[int] = field(default_factory=list)

    def note(self, given: Sequence[Any]) -> None:
        """Note what a region is given; before it may stand what torch itself adds."""
        places: dict[int, int] = {}
        self._first = [places.setdefault(id(item), place) for place, item in enumerate(given)]
        self._tensors = [weakref.ref(item) if isinstance(item, torch.Tensor) else None for item in given]

    def put_back(self, unpacked: Sequence[Any]) -> tuple[Any, ...]:
        """Return what the region is to be given when it runs again: one object where it was one object."""
        added = len(self._tensors) - len(unpacked)
        if added < 0:
            return tuple(unpacked)
        found: dict[int, Any] = {}
        for item, ref, first in zip(unpacked, self._tensors[added:], self._first[added:], strict=True):
            original = None if ref is None else ref()
            found.setdefault(first, item if original is None else original)
        return tuple(
            item if ref is None else found[first]
            for item, ref, first in zip(unpacked, self._tensors[added:], self._first[added:], strict=True)
        )
