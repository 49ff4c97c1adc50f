"""Find the regions of a forward to checkpoint: stretches of op calls, given by their module or by their ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memwatch.capture.schema import FORWARD, IN_BACKWARD, NONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memwatch.replay.checkpoints.step import TrainingStep


@dataclass(frozen=True, slots=True)
class Region:
    """One run of a checkpointed region.

    Attributes:
        key: number of the region; a plan saves the same results in all runs with this number. `module_regions` uses the
            number of the module. `own_regions` and `likely_regions` use the turn, see `with_turns`. `match` uses the
            position in `seen`.
        start: its first op call in the forward.
        end: the number of its last op call in the forward, plus 1.
        names: overloads that the region calls in training, if they are known.
    """

    key: int
    start: int
    end: int
    names: tuple[str, ...] = ()

    def overloads(self, step: TrainingStep) -> list[str]:
        """Return the overloads that the region calls in training."""
        return list(self.names) or [
            step.overloads[each] for each in step.call_overload[self.start : self.end]
        ]


def module_regions(step: TrainingStep) -> list[list[Region]]:
    """Return sets of module calls that can be checkpointed. Calls of one set are not nested. The key is the module.

    The first set has the outermost modules with a sibling of the same class, such as the blocks of a transformer. Each
    of up to three other sets has all modules at one depth, below the outermost module. A module is left out if its
    calls run only one op, or cannot run again.
    """
    runs = _runs(step)
    families = _families(step, runs)
    sets = [_outermost(step, sorted(run for family in families for run in family))]
    depths = sorted({int(step.run_depth[run]) for run in runs})
    sets += [[run for run in runs if step.run_depth[run] == depth] for depth in depths[1:4]]
    found: list[list[Region]] = []
    for chosen in sets:
        regions = _allowed(step, _as_regions(step, chosen))
        if regions and regions not in found:
            found.append(regions)
    return found


def likely_regions(step: TrainingStep) -> list[Region]:
    """Return the calls of the modules that a program most likely checkpoints. The key is the turn.

    These modules are siblings of one class, such as the blocks of a transformer. If there are several such groups, the
    group that runs the most ops is returned.
    """
    families = [_outermost(step, family) for family in _families(step, _runs(step))]
    most = max(
        families, key=lambda runs: sum(step.run_end[run] - step.run_start[run] for run in runs), default=[]
    )
    return with_turns(step, _as_regions(step, most))


def _runs(step: TrainingStep) -> list[int]:
    """Return the calls of modules in the forward that ran more than one op."""
    return [
        run
        for run, (start, end) in enumerate(zip(step.run_start.tolist(), step.run_end.tolist(), strict=True))
        if step.run_module[run] != NONE and end - start > 1 and (step.call_phase[start:end] == FORWARD).all()
    ]


def _families(step: TrainingStep, runs: list[int]) -> list[list[int]]:
    """Return the calls of modules that have a sibling of their class, one list for each such family of siblings."""
    families: dict[tuple[tuple[str, ...], str], list[int]] = {}
    for run in runs:
        module = int(step.run_module[run])
        families.setdefault((tuple(step.module_path[module][:-1]), step.module_class[module]), []).append(run)
    return [family for family in families.values() if len({int(step.run_module[run]) for run in family}) > 1]


def _as_regions(step: TrainingStep, runs: list[int]) -> list[Region]:
    return [
        Region(int(step.run_module[run]), int(step.run_start[run]), int(step.run_end[run])) for run in runs
    ]


def _outermost(step: TrainingStep, runs: Iterable[int]) -> list[int]:
    """Return the runs that are not nested in another run. The given runs are in the order of their starts."""
    found: list[int] = []
    end = -1
    for run in runs:
        if step.run_start[run] >= end:
            found.append(run)
            end = int(step.run_end[run])
    return found


def _allowed(step: TrainingStep, regions: list[Region]) -> list[Region]:
    """Return the regions of the modules of which every call can run again."""
    refused = {
        region.key
        for region in regions
        if not step.call_repeatable[region.start : region.end].all() or outer_writers(step, region) is None
    }
    return [region for region in regions if region.key not in refused]


def outer_writers(step: TrainingStep, region: Region) -> set[int] | None:
    """Return the modules that write, in the region, buffers from before it. A batch norm does so with its statistics.

    The result is None if the region cannot run again, because code outside of all modules writes such a buffer, or an
    earlier op of the step made the buffer.
    """
    inside = (step.write_call >= region.start) & (step.write_call < region.end)
    maker = step.buffer_maker[step.write_buffer]
    outer = inside & (maker < region.start)
    writers = set(step.write_module[outer].tolist())
    return None if NONE in writers or (maker[outer] != NONE).any() else writers


def own_regions(step: TrainingStep) -> list[tuple[Region, int, int]]:
    """Return the regions that the recorded program itself checkpoints, with the calls that ran them again.

    The calls that ran a region again have the same ops as a stretch of the forward, which is the region. If several
    stretches have these ops, the last one that is still free is chosen, because regions run again in reverse order.
    Each stretch belongs to at most one region. If no stretch is free, the calls are left out. This happens if a second
    backward runs a region once more.
    """
    found: list[tuple[Region, int, int]] = []
    again = sorted(zip(step.again_start.tolist(), step.again_end.tolist(), strict=True))
    taken = {call for start, end in again for call in range(start, end)}
    overloads = step.call_overload.tolist()
    forward = np.flatnonzero(step.call_phase == FORWARD)
    for start, end in again:
        wanted = overloads[start:end]
        for place in forward[forward < start][::-1].tolist():
            stretch = range(place, place + len(wanted))
            if wanted and overloads[place : stretch.stop] == wanted and taken.isdisjoint(stretch):
                taken.update(stretch)
                found.append((Region(0, place, stretch.stop), start, end))
                break
    turns = with_turns(step, [region for region, _, _ in sorted(found, key=lambda entry: entry[0].start)])
    again_of = {region.start: (start, end) for region, start, end in found}
    return [(region, *again_of[region.start]) for region in turns]


def with_turns(step: TrainingStep, regions: Iterable[Region]) -> list[Region]:
    """Return regions with their turn as the key: their position among the regions of one pass, from 0.

    A pass is the part of the forward between two backwards.
    """
    backward = np.flatnonzero(np.isin(step.call_phase, IN_BACKWARD))
    turns: dict[int, int] = {}  # number of backward calls before a pass -> the latest turn in this pass
    numbered = []
    for region in regions:
        before = int(np.searchsorted(backward, region.start))
        turns[before] = turns.get(before, NONE) + 1
        numbered.append(Region(turns[before], region.start, region.end, region.names))
    return numbered


def match(step: TrainingStep, seen: Sequence[Sequence[str]]) -> list[Region]:
    """Find in a recording the regions that ran later, in training. A region that was not recorded is left out.

    Args:
        step: a step that was recorded without checkpoints. It may have several passes, which all run the same regions.
        seen: for each region of one pass in training, in order, the overloads that it called.
    """
    known = {plain_name(name) for name in step.overloads}
    names = [tuple(name for name in each if plain_name(name) in known) for each in seen]
    forward = np.flatnonzero(step.call_phase == FORWARD).tolist()
    recorded = [plain_name(step.overloads[step.call_overload[call]]) for call in forward]
    found: list[Region] = []
    cursor, before = 0, -1
    while len(found) > before:  # one round for each recorded pass, until a round finds nothing
        before = len(found)
        for key, calls in enumerate(names):
            place = _find(recorded, [plain_name(name) for name in calls], cursor)
            if place != NONE:
                cursor = place + len(calls)
                found.append(Region(key, forward[place], forward[cursor - 1] + 1, calls))
    return found


def plain_name(name: str) -> str:
    """Return the name of an overload without the `_` of in-place ops.

    Under a dispatch mode, torch calls some ops out of place that it otherwise calls in place.
    """
    space, base, overload = name.rsplit(".", 2)
    return f"{space}.{base.rstrip('_')}.{overload}"


def _find(recorded: list[str], wanted: list[str], start: int) -> int:
    """Return the first index at or after `start` where the wanted names begin; -1 if there is none."""
    if wanted:
        for place in range(start, len(recorded) - len(wanted) + 1):
            if recorded[place : place + len(wanted)] == wanted:
                return place
    return NONE
