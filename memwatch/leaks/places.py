"""Bytes and storages behind each holder, from one look at the heap to the next: which of them only grow?

A holder that drops as much as it takes keeps its count, and the bytes of what it holds go up and down. One that keeps
what each run adds has more storages after every run; one that keeps a single tensor that grows has a larger one.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from memwatch.leaks.diagnose import Diagnosis
    from memwatch.leaks.survivor import Survivor

Place = tuple[str, "Hashable"]
"""A device and a holder."""


class Growth(NamedTuple):
    """What one holder has after some runs that it did not have before.

    Attributes:
        survivors: what it holds.
        nbytes: bytes that all the runs together added.
        count: storages that they added; 0 if one that was there became larger.
    """

    survivors: list[Survivor]
    nbytes: int
    count: int


class _Behind:
    """What each holder held at one look."""

    def __init__(self, look: Diagnosis) -> None:
        self.count: defaultdict[Place, int] = defaultdict(int)
        self.nbytes: defaultdict[Place, int] = defaultdict(int)
        self.slots: defaultdict[tuple[Place, Hashable], int] = defaultdict(int)
        for held in [*(survivor.holding for survivor in look.survivors), *look.elders]:
            self.count[held.place] += 1
            self.nbytes[held.place] += held.nbytes
            self.slots[held.place, held.slot] += held.nbytes


def growth(looks: Sequence[Diagnosis], earlier: Sequence[Diagnosis], *, every_run: bool) -> list[Growth]:
    """Find the holders that grew, among those of the last look.

    Args:
        looks: one look before some runs and one after each.
        earlier: the same of runs long before, if any: what only went up and down since then did not grow.
        every_run: True to count only holders that have more storages after every run, not only after all of them.
    """
    points, before = [_Behind(look) for look in looks], [_Behind(look) for look in earlier]
    grown = []
    for place, survivors in _by_place(looks[-1]).items():
        counts = [point.count[place] for point in points]
        is_rising = _rises(counts) if every_run else counts[-1] > counts[0]
        if is_rising and _is_above(counts, [point.count[place] for point in before]):
            added_bytes = points[-1].nbytes[place] - points[0].nbytes[place]
            grown.append(Growth(survivors, added_bytes, counts[-1] - counts[0]))
            continue
        slots = {survivor.holding.slot for survivor in survivors}
        rising = {slot for slot in slots if _slot_rises(points, before, (place, slot))}
        if rising:
            added_bytes = sum(points[-1].slots[place, slot] - points[0].slots[place, slot] for slot in rising)
            grown.append(Growth([each for each in survivors if each.holding.slot in rising], added_bytes, 0))
    return grown


def _slot_rises(points: list[_Behind], before: list[_Behind], key: tuple[Place, Hashable]) -> bool:
    sizes = [point.slots[key] for point in points]
    return _rises(sizes) and _is_above(sizes, [point.slots[key] for point in before])


def _by_place(look: Diagnosis) -> dict[Place, list[Survivor]]:
    places: dict[Place, list[Survivor]] = {}
    for survivor in look.survivors:
        places.setdefault(survivor.holding.place, []).append(survivor)
    return places


def _rises(amounts: Sequence[int]) -> bool:
    return all(earlier < later for earlier, later in pairwise(amounts))


def _is_above(amounts: Sequence[int], earlier: Sequence[int]) -> bool:
    return not earlier or min(amounts) > max(earlier)
