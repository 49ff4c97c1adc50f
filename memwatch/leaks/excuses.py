"""Containers whose content is no leak: bounded ones, places that were made before, what all ends of a tee have read.

They excuse what they hold, not what holds the same beside them: a list of all is a leak beside a window of the latest.
The bound of a cache is about its results. It excuses no object that the cache keeps as a part of its keys, as the
`self` of each call of a cached method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memwatch.edges import EdgeKind
from memwatch.heap.class_checks import is_a
from memwatch.heap.tensors import is_tensor
from memwatch.leaks.exemptions import is_bounded
from memwatch.leaks.fixed_places import fills_its_place, was_read_by_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.heap.paths import Step
    from memwatch.leaks.fixed_places import Slots


def excusing(
    objects: Sequence[Any],
    steps: Sequence[Step],
    cut: Step | None,
    slots: Slots,
    *,
    growth_counts: bool,
    one_pass: bool,
    is_one_more: bool,
) -> int | None:
    """Return which object of a retention path excuses what it leads to, or None if none does.

    Args:
        objects: the path.
        steps: its references.
        cut: the one through which something older holds what is new.
        slots: what is known of lists with empty places.
        growth_counts: True if a place that was made before may leak by what it is given.
        one_pass: True if there is but one look: then a bounded container that is new itself is excused as well.
        is_one_more: True if the reference to cut is of a container that has older entries of the class: of many bounded
            containers each is bounded, and they are not.
    """
    bounded = next((at for at, obj in enumerate(objects) if is_bounded(obj)), None)
    if bounded is not None and not is_argument_object(objects, cut):
        is_filled = cut is None or bounded == cut.start
        is_new = one_pass and cut is not None and bounded > cut.start and not is_one_more
        if is_filled or is_new:
            return bounded
    read = was_read_by_all(objects)
    if read is not None or cut is None:
        return read
    owner = objects[cut.start]
    is_place = slots.is_slot(owner, cut) or (not growth_counts and fills_its_place(owner, cut, steps))
    return cut.start if is_place else None


def is_argument_object(objects: Sequence[Any], cut: Step | None) -> bool:
    """Return True if a cache keeps an object, and with it the object's tensors, for it was an argument of a call.

    A tensor that is an argument itself is what the program gave the cache to keep.

    Args:
        objects: a retention path.
        cut: its reference to cut.
    """
    if cut is None or cut.edge.kind is not EdgeKind.CACHE_ARGUMENT:
        return False
    argument = next((obj for obj in objects[cut.end :] if not (is_a(obj, tuple) or is_a(obj, list))), None)
    return argument is not None and not is_tensor(argument)
