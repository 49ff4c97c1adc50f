"""Choose the tensors that checkpointed regions save, so that a step stays within a budget at the least extra cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from memwatch.replay.checkpoints.timeline import Timeline, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.capture.columns import IntArray
    from memwatch.replay.checkpoints.regions import Region
    from memwatch.replay.checkpoints.step import TrainingStep
    from memwatch.replay.checkpoints.timeline import Item

_TRIALS: Final = 6
"""Numbers of unchanged modules that are tried. A guess."""
Key: TypeAlias = tuple[int, str, int]
"""Identifies a call: region, overload, and how many calls of this overload in the region came before it."""


@dataclass(frozen=True, eq=False)
class Choice:
    """The checkpointed regions and their saved results.

    Attributes:
        regions: the checkpointed regions.
        saved: bytes of the results that are saved, by region, overload, and number of the call of that overload.
        peak_bytes: peak increase of the step.
        pass_bytes: the most live bytes, among buffers made from the first region to the end of the backward.
        again_price: cost of the calls that run again.
    """

    regions: list[Region]
    saved: dict[Key, int]
    peak_bytes: int
    pass_bytes: int
    again_price: int

    def is_better_than(self, other: Choice, budget_bytes: int) -> bool:
        """Return True if this choice keeps the budget at a lower cost, or exceeds it by less."""
        over = max(self.peak_bytes - budget_bytes, 0)
        other_over = max(other.peak_bytes - budget_bytes, 0)
        return (over, self.again_price, self.peak_bytes) < (other_over, other.again_price, other.peak_bytes)


def choose_saved(timeline: Timeline, regions: list[Region]) -> Choice:
    """Choose the results to save in these checkpointed regions.

    The limit is the peak of plain checkpoints of the same regions. Results that fit below it are saved, first the
    results that cost most per added byte. Two orders are tried: over all regions, and region by region.
    """
    groups: dict[Key, list[Item]] = {}
    for item in timeline.items:
        groups.setdefault(item.key, []).append(item)
    by_worth = sorted(groups, key=lambda key: -_worth(groups[key]))
    # the last region holds its saved tensors for the shortest time
    by_region = sorted(by_worth, key=lambda key: -key[0])
    found = [_plain(timeline, regions)]
    found += [
        _saving(timeline, regions, {key: groups[key] for key in order}) for order in (by_worth, by_region)
    ]
    return min(found, key=lambda choice: (choice.again_price, choice.peak_bytes))


def _plain(timeline: Timeline, regions: list[Region]) -> Choice:
    held = timeline.live_bytes + timeline.workspace_bytes
    return Choice(regions, {}, timeline.peak_bytes, timeline.of_pass(held), timeline.again_price)


def _saving(timeline: Timeline, regions: list[Region], groups: dict[Key, list[Item]]) -> Choice:
    """Choose the results to save, in this order of the groups.

    Selective checkpointing costs time for each op of a region. If a region saves too little to pay for that, it saves
    nothing, which leaves room for others.
    """
    saved = _fill(timeline, groups)
    while True:
        gain: dict[int, int] = {}
        for key in saved:
            gain[key[0]] = gain.get(key[0], 0) + sum(item.price for item in groups[key])
        losses = sorted((timeline.mode_price[region] - gain[region], region) for region in gain)
        dropped = {region for loss, region in losses[len(losses) // 2 :] if loss >= 0}
        if not dropped:
            break
        groups = {key: items for key, items in groups.items() if key[0] not in dropped}
        saved = _fill(timeline, groups)
    price = timeline.again_price + sum(timeline.mode_price[region] - gain[region] for region in gain)
    held = _held(timeline, [groups[key] for key in saved])
    peak_bytes = int(held.max(initial=0))
    if not saved or peak_bytes > timeline.peak_bytes:  # a plain checkpoint needs no dispatch mode
        return _plain(timeline, regions)
    sizes = {key: max(item.nbytes for item in groups[key]) for key in saved}
    return Choice(regions, sizes, peak_bytes, timeline.of_pass(held), price)


def _fill(timeline: Timeline, groups: dict[Key, list[Item]]) -> list[Key]:
    """Return the groups that fit below the peak of plain checkpoints, first come, first served."""
    limit = timeline.peak_bytes
    total = timeline.live_bytes + timeline.workspace_bytes + timeline.mode_bytes
    saved = []
    for key, items in groups.items():
        if _fits(total, items, limit):
            saved.append(key)
            for hold in (hold for item in items for hold in item.holds):
                total[hold.start : hold.end + 1] += hold.nbytes
    return saved


def _held(timeline: Timeline, saved: list[list[Item]]) -> IntArray:
    """Return the bytes held at each moment with these results saved."""
    live = timeline.live_bytes.copy()
    workspace = timeline.workspace_bytes + timeline.mode_bytes
    for item in (item for items in saved for item in items):
        workspace[item.step] = 0  # a saved call does not run again
        for hold in item.holds:
            live[hold.start : hold.end + 1] += hold.nbytes
    held: IntArray = live + workspace
    return held


def _worth(items: list[Item]) -> float:
    held = sum(hold.nbytes for item in items for hold in item.holds)
    return float(sum(item.price for item in items) / held) if held else np.inf


def _fits(total: IntArray, items: list[Item], limit: int) -> bool:
    holds = [hold for item in items for hold in item.holds]
    if sum(hold.nbytes for hold in holds) == 0:
        return True
    if len(holds) == 1:
        hold = holds[0]
        return bool(total[hold.start : hold.end + 1].max(initial=0) + hold.nbytes <= limit)
    first = min(hold.start for hold in holds)
    last = max(hold.end for hold in holds)
    added = np.zeros(last - first + 2, dtype=np.int64)
    for hold in holds:
        added[hold.start - first] += hold.nbytes
        added[hold.end + 1 - first] -= hold.nbytes
    return bool((total[first : last + 1] + np.cumsum(added)[:-1]).max(initial=0) <= limit)


def choose_regions(step: TrainingStep, sets: Sequence[list[Region]], budget_bytes: int) -> Choice:
    """Choose the modules to checkpoint and the results to save in them.

    The budget decides how many modules are checkpointed. Saved results never raise the peak. In each set, the last
    modules stay as they are, as many as the budget allows, because their saved tensors live for the shortest time.
    """
    best = _choice(step, [])
    if best.peak_bytes <= budget_bytes:
        return best
    for regions in sets:
        for count in _counts(step, regions, budget_bytes):
            found = _choice(step, _without_last(regions, count))
            if found.is_better_than(best, budget_bytes):
                best = found
    return best


def _choice(step: TrainingStep, regions: list[Region]) -> Choice:
    return choose_saved(simulate(step, regions), regions)


def _without_last(regions: list[Region], count: int) -> list[Region]:
    keys = list(dict.fromkeys(region.key for region in regions))
    kept = set(keys[: len(keys) - count])
    return [region for region in regions if region.key in kept]


def _counts(step: TrainingStep, regions: list[Region], budget_bytes: int) -> list[int]:
    """Return some numbers of unchanged regions that keep the budget, 0 among them."""
    low, high = 0, len({region.key for region in regions}) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if simulate(step, _without_last(regions, middle)).peak_bytes <= budget_bytes:
            low = middle
        else:
            high = middle - 1
    return sorted({0, 1, *np.linspace(0, low, min(low + 1, _TRIALS)).astype(int).tolist()})
