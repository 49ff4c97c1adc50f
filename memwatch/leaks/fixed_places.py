"""References whose number does not grow, whatever a program puts there: slots of a list, what a tee has not let go of.

`slots = [None] * n; slots[step % n] = tensor` fills places that were made before: what has an empty one after it was
not appended. The last one has none, so how long such a list was is remembered. `itertools.tee` frees what both its ends
have read in blocks of 57.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.kinds.edges import EdgeKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.heap.paths import Step

_END: Final[type] = type(itertools.tee(())[0])
_BLOCK: Final[type | None] = getattr(itertools, "_tee_dataobject", None)
_MOST_LISTS: Final = 1_000
_ROOM: Final = 4  # places at a time


class Slots:
    """Lists and arrays with empty places, and how long they were when these were seen; keeps none of them alive."""

    def __init__(self) -> None:
        self._lengths: dict[int, int] = {}

    def is_slot(self, owner: Any, step: Step) -> bool:
        """Return True for an item of a list, or of an array, that had its place before something was put there.

        Args:
            owner: what has the item.
            step: the reference to it.
        """
        position = step.edge.position
        if step.edge.kind is not EdgeKind.ITEM or position is None:
            return False
        if type(owner) is list:
            length, beside = len(owner), owner[position + 1 :]
        elif type(owner) is np.ndarray:
            length, beside = owner.size, owner.reshape(-1)[position + 1 :].tolist()
        else:
            return False
        if any(item is None for item in beside):
            self._lengths[id(owner)] = length
            if len(self._lengths) > _MOST_LISTS:
                del self._lengths[next(iter(self._lengths))]
            return True
        return self._lengths.get(id(owner)) == length


def fills_its_place(owner: Any, step: Step, path: Sequence[Step]) -> bool:
    """Return True for an item of a list that was made with all its places, as `[None]`, and did not grow since.

    Python reserves places for appended items four at a time, and more than it needs. The graph of an item does not
    count.

    Args:
        owner: the object with the item.
        step: the reference to it.
        path: all references, including those behind the item.
    """
    if step.edge.kind is not EdgeKind.ITEM or type(owner) is not list:
        return False
    room = (list.__sizeof__(owner) - list.__basicsize__) // ctypes.sizeof(ctypes.c_void_p)
    is_behind_graph = any(each.edge.kind is EdgeKind.GRAD_FN for each in path)
    return room == len(owner) and room % _ROOM != 0 and not is_behind_graph


def was_read_by_all(objects: Sequence[Any]) -> int | None:
    """Return which object of a path is a tee's block, if all ends of the tee have read what it leads to.

    The next blocks will free that.

    Args:
        objects: the path.
    """
    blocks = [at for at, obj in enumerate(objects[:-1]) if type(obj) is _BLOCK]
    if _BLOCK is None or not blocks:
        return None
    block, item = objects[blocks[-1]], objects[blocks[-1] + 1]
    place = next((at for at, obj in enumerate(gc.get_referents(block)[1:]) if obj is item), None)
    referrers = [obj for obj in gc.get_referrers(block) if type(obj) is _END or type(obj) is _BLOCK]
    if place is None or any(type(obj) is _BLOCK for obj in referrers):  # an end is a block behind at least
        return None
    return blocks[-1] if all(place < _next_index(end, block) for end in referrers) else None


def _next_index(end: Any, block: Any) -> int:
    """Return which item of its block an end gives next: the number in memory behind its reference to the block.

    To pickle an end tells it too, but warns, and from Python 3.14 on not at all.
    """
    reference = id(end) + object.__basicsize__
    if ctypes.c_void_p.from_address(reference).value != id(block):
        return 0
    return ctypes.c_int.from_address(reference + ctypes.sizeof(ctypes.c_void_p)).value
