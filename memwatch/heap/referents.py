"""What many objects refer to, asked of gc at once: how many each, and the ids of them all."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from memwatch.heap.ids import ids_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(slots=True)
class Referents:
    """What some objects refer to, one object's after the other's; holds it, so drop this soon.

    Attributes:
        counts: how many each object refers to.
        ids: the ids of them all.
        objects: the objects themselves, and marks between those of one owner and of the next.
        places: where among these each is.
    """

    counts: NDArray[np.int64]
    ids: NDArray[np.int64]
    objects: list[Any]
    places: NDArray[np.int64]

    def at(self, which: NDArray[np.int64]) -> Sequence[Any]:
        """Return some of the objects, by their numbers without the marks."""
        places = self.places[which].tolist()
        return itemgetter(*places)(self.objects) if len(places) > 1 else [self.objects[at] for at in places]


def referents_of(part: list[Any], mark: tuple[object]) -> Referents:
    """List what some objects refer to.

    A list for each object would take longer than all the rest. Many objects are asked at once instead, with a
    mark after each whose only referent, which nothing else refers to, shows where the next one's begin.
    """
    marked = [mark] * (2 * len(part))
    marked[::2] = part
    near = gc.get_referents(*marked)
    ids = ids_of(near)
    is_end = ids == id(mark[0])
    ends = np.flatnonzero(is_end)
    if len(ends) == len(part):
        places = np.flatnonzero(~is_end)
        return Referents(np.diff(ends, prepend=-1) - 1, ids[places], near, places)
    each = [gc.get_referents(obj) for obj in part]  # the program got hold of the mark, and refers to it
    near = list(chain.from_iterable(each))
    counts = np.fromiter(map(len, each), dtype=np.int64)
    return Referents(counts, ids_of(near), near, np.arange(len(near)))
