"""Choose the tensors that checkpointed regions save, so that a step stays within a budget at the least extra cost.

A *call* is one call of an op in the recorded step, which ran without checkpoints. A *moment* is one call in the same
step with checkpoints, where the calls of a region run twice. `simulate` computes the live bytes of eager PyTorch at
every moment.

With a checkpoint, a region keeps its inputs and drops the tensors that autograd would save in it. When the backward
first reads one of these saved tensors, the region runs again, up to the call that makes the last of them.

No Python variable changes while a backward runs. If a buffer was freed during the backward, then only autograd held it
at that time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import torch

from memwatch.capture.schema import IN_BACKWARD, NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.capture.columns import IntArray
    from memwatch.replay.checkpoints.regions import Region
    from memwatch.replay.checkpoints.step import TrainingStep


RANDOM_STATE_BYTES: Final = int(torch.get_rng_state().nbytes)
"""Bytes of the generator's state, which a checkpoint on the host saves for each region."""
_MODE_PRICE: Final = 1_000_000
"""Price (FLOPs) of torch's Python code for each call in a region that saves results, and for the views around the call:
about 20 microseconds of a core of 50 GFLOP/s."""
_NUMBER_BYTES: Final = 8
"""Bytes added for each call, in case one of its arguments is a number. torch wraps the number in a tensor, which
autograd may keep. The recorder does not see this tensor."""
Key: TypeAlias = tuple[int, str, int]
"""Identifies a call: region, overload, and how many calls of this overload in the region came before it."""


class Hold(NamedTuple):
    """Bytes that are live from one moment to another, both included."""

    start: int
    end: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Item:
    """The results of one call of a region, which may be saved.

    Attributes:
        key: the call.
        step: the moment at which the call runs again if it is not saved.
        price: cost of running it again.
        nbytes: bytes of its results.
        holds: bytes that live longer if it is saved.
    """

    key: Key
    step: int
    price: int
    nbytes: int
    holds: tuple[Hold, ...]


@dataclass(frozen=True, eq=False)
class Timeline:
    """A step with plain checkpoints, moment by moment.

    Attributes:
        live_bytes: live bytes at each moment, without workspace.
        workspace_bytes: workspace of the call that runs at each moment.
        mode_bytes: bytes that this call takes in addition if its region saves results.
        again_price: cost of running regions again.
        items: the results that can be saved.
        mode_price: region -> cost of calling the policy for each of its ops, if it saves anything.
        before_bytes: the part of `live_bytes` that was made before the first region.
        first: the moment at which the first region begins.
        last: the moment at which the last backward ends.
    """

    live_bytes: IntArray
    workspace_bytes: IntArray
    mode_bytes: IntArray
    again_price: int
    items: list[Item] = field(default_factory=list)
    mode_price: dict[int, int] = field(default_factory=dict)
    before_bytes: IntArray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    first: int = 0
    last: int = 0

    @property
    def peak_bytes(self) -> int:
        """The most bytes held at once."""
        return int((self.live_bytes + self.workspace_bytes).max(initial=0))

    def of_pass(self, held_bytes: IntArray) -> int:
        """Return the most live bytes, among buffers made from the first region to the end of the backward."""
        between = slice(self.first, self.last + 1)
        return int((held_bytes - self.before_bytes)[between].max(initial=0))


@dataclass(slots=True)
class _Run:
    """A region that runs again.

    Attributes:
        region: the region.
        packs: numbers of the tensors that autograd saved in it.
        stop: the call before which the region stops when it runs again.
        before: the call of the backward before which it runs again.
        released: the call after which torch drops the inputs and the random state of the region.
        shift: the distance from a call to the moment at which it runs again.
    """

    region: Region
    packs: IntArray
    stop: int
    before: int
    released: int
    shift: int = 0


def simulate(step: TrainingStep, regions: Sequence[Region]) -> Timeline:
    """Return the timeline of the step with plain checkpoints of these regions."""
    return _Simulation(step, regions).run()


def own_timeline(step: TrainingStep, own: Sequence[tuple[Region, int, int]]) -> Timeline:
    """Return the timeline of a step that was recorded with checkpoints of its own.

    Args:
        step: the recorded step.
        own: its regions, with the calls that ran each of them again.
    """
    count = step.num_calls
    made = np.flatnonzero(step.buffer_maker != NONE)
    change = np.zeros(count + 1, dtype=np.int64)
    end = np.minimum(step.buffer_death, count - 1)
    mode_bytes = np.zeros(count, dtype=np.int64)
    np.add.at(change, step.buffer_maker[made], step.buffer_nbytes[made])
    np.subtract.at(change, end[made] + 1, step.buffer_nbytes[made])
    first = min((region.start for region, _, _ in own), default=0)
    early = made[step.buffer_maker[made] < first]
    before = np.zeros(count + 1, dtype=np.int64)
    np.add.at(before, step.buffer_maker[early], step.buffer_nbytes[early])
    np.subtract.at(before, end[early] + 1, step.buffer_nbytes[early])
    price, items = 0, []
    mode_price: dict[int, int] = {}
    for region, start, stop in own:
        mode_price[region.key] = mode_price.get(region.key, 0) + _MODE_PRICE * 2 * (stop - start)
        price += int(step.call_price[start:stop].sum())
        items += _items(step, region, region.start + stop - start, start - region.start, end)
        for calls in (slice(region.start, region.end), slice(start, stop)):
            mode_bytes[calls] = step.call_mode_bytes[calls]
        if step.is_on_host:
            left = min(_last_call_of_region(step, region, start, stop), count - 1)
            np.add.at(change, [region.start, start], RANDOM_STATE_BYTES)
            np.subtract.at(change, [left + 1, stop], RANDOM_STATE_BYTES)
    live = np.cumsum(change)[:-1] + _number_bytes(step)
    return Timeline(
        live,
        step.call_workspace_bytes,
        mode_bytes,
        price,
        items,
        mode_price,
        np.cumsum(before)[:-1],
        first,
        _last_backward(step),
    )


def _last_backward(step: TrainingStep) -> int:
    return int(np.flatnonzero(np.isin(step.call_phase, IN_BACKWARD)).max(initial=0))


def _number_bytes(step: TrainingStep) -> int:
    return _NUMBER_BYTES * int((~np.isin(step.call_phase, IN_BACKWARD)).sum())


def _last_call_of_region(step: TrainingStep, region: Region, start: int, stop: int) -> int:
    """Return the last call at which torch keeps the random state of a region that ran again.

    torch drops the state together with the last of the region's inputs and results. Inputs and results that outlive the
    step do not count, because the program holds them.
    """
    inside = (step.use_call >= start) & (step.use_call < stop)
    given = np.unique(step.use_buffer[inside])
    given = given[(step.buffer_maker[given] >= 0) & (step.buffer_maker[given] < region.start)]
    made = np.flatnonzero((step.buffer_maker >= start) & (step.buffer_maker < stop))
    deaths = step.buffer_death[np.concatenate([given, made])]
    return int(deaths[deaths < step.num_calls].max(initial=stop))


class _Simulation:
    def __init__(self, step: TrainingStep, regions: Sequence[Region]) -> None:
        self.step = step
        self.runs = self._runs(regions)
        self.run_of_call = np.full(step.num_calls + 1, NONE, dtype=np.int64)
        lengths = np.zeros(step.num_calls + 1, dtype=np.int64)
        for number, run in enumerate(self.runs):
            self.run_of_call[run.region.start : run.region.end] = number
            lengths[run.before] += run.stop - run.region.start
        self.moment = np.arange(step.num_calls + 1) + np.cumsum(lengths)
        self.count = int(self.moment[-1])
        start: dict[int, int] = {}
        for run in self.runs:
            length = run.stop - run.region.start
            place = start.get(run.before, int(self.moment[run.before]) - int(lengths[run.before]))
            run.shift = place - run.region.start
            start[run.before] = place + length
        self.first = int(self.moment[min((run.region.start for run in self.runs), default=0)])
        # the change of live bytes at each moment. Row 0: all buffers. Row 1: buffers made before the first region
        self.change = np.zeros((2, self.count + 1), dtype=np.int64)
        backward = np.isin(step.call_phase, IN_BACKWARD)
        before = np.concatenate(([-1], np.flatnonzero(~backward)))
        # for each call: the last call before the backward that contains it
        self.before_backward = before[np.searchsorted(before, np.arange(step.num_calls), side="right") - 1]
        self.in_backward = backward

    def _runs(self, regions: Sequence[Region]) -> list[_Run]:
        step, found = self.step, []
        for region in regions:
            inside = (step.pack_call >= region.start) & (step.pack_call < region.end)
            packs = np.flatnonzero(inside)
            read = step.pack_read[packs]
            if not len(packs) or (read == NONE).all():
                continue  # no backward comes here
            stop = min(int(step.pack_saved[packs[-1]]), region.end)
            before = int(read[read != NONE].min())
            released = min(int(step.pack_released[packs].max()), step.num_calls - 1)
            found.append(_Run(region, packs, max(stop, region.start), before, max(released, before)))
        return found

    def run(self) -> Timeline:
        step = self.step
        forward_end = self._add_forward_buffers()
        self._add_recomputed_buffers()
        workspace, mode_bytes = np.zeros((2, self.count), dtype=np.int64)
        workspace[self.moment[:-1]] = step.call_workspace_bytes
        price = 0
        items: list[Item] = []
        mode_price: dict[int, int] = {}
        for run in self.runs:
            key = run.region.key
            count = run.region.end + run.stop - 2 * run.region.start
            mode_price[key] = mode_price.get(key, 0) + _MODE_PRICE * count
            calls = slice(run.region.start, run.stop)
            again = slice(run.region.start + run.shift, run.stop + run.shift)
            workspace[again] = step.call_workspace_bytes[calls]
            mode_bytes[again] = step.call_mode_bytes[calls]
            every = slice(run.region.start, run.region.end)
            mode_bytes[self.moment[every]] = step.call_mode_bytes[every]
            price += int(step.call_price[calls].sum())
            items += _items(step, run.region, run.stop, run.shift, forward_end)
        live, made_before = np.cumsum(self.change, axis=1)[:, :-1]
        if self.runs:
            live = live + _number_bytes(step)
        return Timeline(
            live,
            workspace,
            mode_bytes,
            price,
            items,
            mode_price,
            made_before,
            self.first,
            int(self.moment[_last_backward(step)]),
        )

    def _hold(self, start: int, end: int, nbytes: int) -> None:
        if end >= start:
            rows = slice(2 if start < self.first else 1)
            self.change[rows, start] += nbytes
            self.change[rows, min(end, self.count - 1) + 1] -= nbytes

    def _add_forward_buffers(self) -> IntArray:
        """Add the buffers that the recorded calls made; return the moment at which each buffer is freed."""
        step, moment = self.step, self.moment
        dies = np.minimum(step.buffer_death, step.num_calls - 1)
        end = moment[dies]
        end[step.buffer_death >= step.num_calls] = self.count
        for buffer, call in self._last_other_holders().items():
            end[buffer] = moment[call] if call != NONE else -1
        for run in self.runs:
            frame_end = int(moment[run.released])
            inside = (step.use_call >= run.region.start) & (step.use_call < run.region.end)
            given = np.unique(step.use_buffer[inside])
            given = given[(step.buffer_maker[given] != NONE) & (step.buffer_maker[given] < run.region.start)]
            end[given] = np.maximum(end[given], frame_end)
            if step.is_on_host:
                self._hold(int(moment[run.region.start]), frame_end, RANDOM_STATE_BYTES)
        made = np.flatnonzero(step.buffer_maker != NONE)
        for buffer in made.tolist():
            self._hold(
                int(moment[step.buffer_maker[buffer]]), int(end[buffer]), int(step.buffer_nbytes[buffer])
            )
        return end

    def _last_other_holders(self) -> dict[int, int]:
        """Return the last call at which something besides the region's saved tensors may hold each saved buffer.

        The result has only the buffers that autograd held longest. A checkpoint frees these earlier.
        """
        step = self.step
        released = np.full(len(step.buffer_nbytes) + 1, NONE, dtype=np.int64)
        np.maximum.at(released, step.pack_buffer, step.pack_released)
        last: dict[int, int] = {}
        for run in self.runs:
            saved = np.unique(step.pack_buffer[run.packs])
            for buffer in saved[saved != NONE].tolist():
                death = int(step.buffer_death[buffer])
                if death >= step.num_calls or not self.in_backward[death] or death > released[buffer]:
                    continue  # a variable or something else held it longest
                if buffer not in last:
                    last[buffer] = self._last_python_holder(buffer, death)
        if not last:
            return last
        dropped = np.concatenate([run.packs for run in self.runs])
        others = np.setdiff1d(np.arange(len(step.pack_buffer)), dropped)
        for pack in others.tolist():
            buffer = int(step.pack_buffer[pack])
            if buffer in last:
                last[buffer] = max(last[buffer], int(step.pack_released[pack]))
        return last

    def _last_python_holder(self, buffer: int, death: int) -> int:
        """Return the last call before the backward at which a variable may hold a buffer.

        If no call after the region that made the buffer uses it, this is the last call of the region.
        """
        step, maker = self.step, int(self.step.buffer_maker[buffer])
        run = self.run_of_call[maker] if maker != NONE else NONE
        uses = step.use_call[(step.use_buffer == buffer) & (step.use_call < death)]
        uses = uses[~self.in_backward[uses]]
        if run != NONE and (not len(uses) or uses.max() < self.runs[run].region.end):
            return self.runs[run].region.end - 1
        return int(self.before_backward[death])

    def _add_recomputed_buffers(self) -> None:
        """Add the buffers that are made when regions run again."""
        step, moment = self.step, self.moment
        for run in self.runs:
            stop = run.stop + run.shift - 1
            if (
                step.is_on_host
            ):  # the region runs with the random state of its forward; torch keeps the current one
                self._hold(run.region.start + run.shift, stop, RANDOM_STATE_BYTES)
            released: dict[int, int] = {}
            for pack in run.packs.tolist():
                buffer = int(step.pack_buffer[pack])
                released[buffer] = max(released.get(buffer, NONE), int(step.pack_released[pack]))
            inside = (step.buffer_maker >= run.region.start) & (step.buffer_maker < run.stop)
            for buffer in np.flatnonzero(inside).tolist():
                start = int(step.buffer_maker[buffer]) + run.shift
                nbytes = int(step.buffer_nbytes[buffer])
                if buffer in released:
                    end = int(moment[min(released[buffer], step.num_calls - 1)])
                else:
                    end = min(int(step.buffer_death[buffer]), run.stop - 1) + run.shift
                self._hold(start, max(end, start), nbytes)


def _items(step: TrainingStep, region: Region, stop: int, shift: int, forward_end: IntArray) -> list[Item]:
    """Return the results of a region that can be saved.

    Args:
        step: the recorded step.
        region: the region.
        stop: the call before which the region stops when it runs again.
        shift: distance from a call to the moment at which it runs again.
        forward_end: the moment at which each buffer is freed if it is not saved.
    """
    found: list[Item] = []
    counts: dict[str, int] = {}
    names = region.overloads(step)
    makes: dict[int, list[int]] = {}
    inside = (step.buffer_maker >= region.start) & (step.buffer_maker < stop)
    for buffer in np.flatnonzero(inside).tolist():
        makes.setdefault(int(step.buffer_maker[buffer]), []).append(buffer)
    for call in range(region.start, stop):
        overload = names[call - region.start]
        number = counts.get(overload, 0)
        counts[overload] = number + 1
        if not step.call_savable[call]:
            continue
        again, made = call + shift, makes.get(call, [])
        holds = tuple(
            Hold(int(forward_end[buffer]) + 1, again - 1, int(step.buffer_nbytes[buffer]))
            for buffer in made
            if forward_end[buffer] + 1 < again
        )
        nbytes = int(step.buffer_nbytes[made].sum())
        found.append(Item((region.key, overload, number), again, int(step.call_price[call]), nbytes, holds))
    return found


_TRIALS: Final = 6
"""How many numbers of modules without a checkpoint are tried. A guess."""


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
        # only the worse half: the others may save more in the room that this leaves
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
    """Return the groups that fit below the peak of plain checkpoints. The first groups are taken first."""
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
    modules get no checkpoint, as many as the budget allows, because their saved tensors live for the shortest time.
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
    """Return some numbers of regions without a checkpoint that keep the budget. 0 is always among them."""
    low, high = 0, len({region.key for region in regions}) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if simulate(step, _without_last(regions, middle)).peak_bytes <= budget_bytes:
            low = middle
        else:
            high = middle - 1
    return sorted({0, 1, *np.linspace(0, low, min(low + 1, _TRIALS)).astype(int).tolist()})
