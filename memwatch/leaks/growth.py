"""Compare the storages behind each holder in successive snapshots of the heap, to find the holders that only grow.

A holder that drops as much as it takes keeps its count, and its bytes go up and down. A holder that keeps memory of
each run has more storages after every run. A holder that keeps a single growing tensor has a larger storage. A snapshot
is the `Diagnosis` of one search.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Sequence

    from memwatch.leaks.diagnose import Diagnosis
    from memwatch.leaks.leak import Name, Survivor

Place = tuple[str, "Hashable"]
"""A device and a holder."""
Slot = tuple[Place, "Name"]
"""One reference of a holder."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of one holder during some runs.

    Attributes:
        survivors: its storages.
        nbytes: bytes that all the runs together added.
        count: storages that they added; 0 if an existing one became larger.
    """

    survivors: list[Survivor]
    nbytes: int
    count: int

    def of_kinds(self) -> list[Growth]:
        """Return the growth of each kind of leak. Call this after a collection: what it freed was garbage."""
        survivors = [each.of_kind() if each.unreachable else each for each in self.survivors]
        return replace(self, survivors=survivors)._by_kind()

    def _by_kind(self) -> list[Growth]:
        """Divide the growth by kinds of leak: gc may free only some of the loops behind one reference."""
        kinds = Counter(survivor.kind for survivor in self.survivors)
        if len(kinds) == 1:
            return [self]
        parts = []
        for kind, count in kinds.items():
            survivors = [survivor for survivor in self.survivors if survivor.kind is kind]
            share = sum(survivor.nbytes for survivor in survivors) / sum(
                each.nbytes for each in self.survivors
            )
            of_count = round(self.count * count / len(self.survivors))
            parts.append(Growth(survivors, round(self.nbytes * share), of_count))
        return parts


class _Behind:
    """The storages behind each reference of each holder in one snapshot."""

    def __init__(self, snapshot: Diagnosis) -> None:
        self.counts: Counter[Slot] = Counter()
        self.nbytes: Counter[Slot] = Counter()
        self.by_place: Counter[Place] = Counter()
        for held in [*(survivor.holding for survivor in snapshot.survivors), *snapshot.elders]:
            self.counts[held.place, held.slot] += 1
            self.nbytes[held.place, held.slot] += held.nbytes
            self.by_place[held.place] += 1


def growth(
    snapshots: Sequence[Diagnosis], earlier: Sequence[Diagnosis], *, every_run: bool, runs: int = 0
) -> list[Growth]:
    """Find the holders that grew, among those of the last snapshot.

    Args:
        snapshots: one snapshot before some runs and one after each.
        earlier: the same for much earlier runs, if any. A holder that only went up and down since then did not grow.
        every_run: True to count only holders that have more storages after every run, not only after all of them.
        runs: the number of all runs, including those before the first snapshot. Multiply the present growth by them: a
            holder with less than half of the product was emptied in between, and does not count. 0 counts every holder.
    """
    comparison = _Comparison(snapshots, earlier, every_run=every_run, runs=runs)
    grown = []
    for place, survivors in _by_place(snapshots[-1]).items():
        slots: set[Name] = {survivor.holding.slot for survivor in survivors}
        rising = {slot for slot in slots if comparison.slot_rises((place, slot))}
        fresh = {slot for slot in slots - rising if comparison.is_new((place, slot))}
        named: dict[str | None, set[Name]] = {}
        for slot in rising:  # variables and keys are separate, items of a list are together
            named.setdefault(slot[0], set()).add(slot)
        groups = list(named.values())
        if comparison.takes_more(place, rising):
            groups.append(fresh)
        grown += [comparison.growth(place, survivors, group) for group in groups if group]
    return grown


class _Comparison:
    """Compares some snapshots with each other and with earlier snapshots."""

    def __init__(
        self, snapshots: Sequence[Diagnosis], earlier: Sequence[Diagnosis], *, every_run: bool, runs: int
    ) -> None:
        self._points = [_Behind(snapshot) for snapshot in snapshots]
        self._before = [_Behind(snapshot) for snapshot in earlier]
        self._every_run = every_run
        # how many times as many runs there were in all as between the first and the last snapshot
        self._times_as_many = runs / max(1, len(snapshots) - 1)

    def slot_rises(self, slot: Slot) -> bool:
        """Return True if one reference leads to more storages, or to a larger one after every run."""
        sizes, earlier_sizes = ([point.nbytes[slot] for point in series] for series in self._series)
        counts, earlier_counts = ([point.counts[slot] for point in series] for series in self._series)
        grows = _rises(sizes) and _is_above(sizes, earlier_sizes) and sizes[0] > 0 and self._lasts(sizes)
        return grows or (counts[0] > 0 and self._more(counts, earlier_counts))

    def is_new(self, slot: Slot) -> bool:
        """Return True if a reference led to no storage in the first snapshot."""
        return self._points[0].counts[slot] == 0

    def takes_more(self, place: Place, rising: Iterable[Name]) -> bool:
        """Return True if a holder has more storages, without those behind the references that rise themselves."""
        counts, earlier = (
            [point.by_place[place] - sum(point.counts[place, slot] for slot in rising) for point in series]
            for series in self._series
        )
        return self._more(counts, earlier)

    def growth(self, place: Place, survivors: Iterable[Survivor], slots: Collection[Name]) -> Growth:
        """Return how much more some references of a holder lead to in the last snapshot than in the first."""
        first, last = self._points[0], self._points[-1]
        return Growth(
            [survivor for survivor in survivors if survivor.holding.slot in slots],
            sum(last.nbytes[place, slot] - first.nbytes[place, slot] for slot in slots),
            sum(last.counts[place, slot] - first.counts[place, slot] for slot in slots),
        )

    @property
    def _series(self) -> tuple[list[_Behind], list[_Behind]]:
        return self._points, self._before

    def _more(self, counts: Sequence[int], earlier: Sequence[int]) -> bool:
        is_rising = _rises(counts) if self._every_run else counts[-1] > counts[0]
        return is_rising and _is_above(counts, earlier) and self._lasts(counts)

    def _lasts(self, amounts: Sequence[int]) -> bool:
        """Return True if a holder has at least half of its present growth times the number of all runs."""
        return 2 * amounts[-1] >= (amounts[-1] - amounts[0]) * self._times_as_many


def _by_place(snapshot: Diagnosis) -> dict[Place, list[Survivor]]:
    places: dict[Place, list[Survivor]] = {}
    for survivor in snapshot.survivors:
        places.setdefault(survivor.holding.place, []).append(survivor)
    return places


def _rises(amounts: Sequence[int]) -> bool:
    return all(earlier < later for earlier, later in pairwise(amounts))


def _is_above(amounts: Sequence[int], earlier: Sequence[int]) -> bool:
    return not earlier or min(amounts) > max(earlier)
