"""Regions of the forward that are checkpointed: stretches of calls, found by module or by what ran in them."""

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
        key: which region it is; runs with the same key save the same.
        start, end: its calls in forward, a half-open range.
    """

    key: int
    start: int
    end: int


def module_regions(step: TrainingStep) -> list[list[Region]]:
    """Return sets of module calls that can be checkpointed, none inside another of its set; a key is a module.

    First the outermost modules that have a sibling of their class, as the blocks of a transformer, then all modules
    at each depth.
    """
    runs = [run for run in range(len(step.run_module)) if _is_forward(step, run)]
    blocks = _blocks(step)
    sets = [_outermost(step, (run for run in runs if step.run_module[run] in blocks))]
    depths = sorted({int(step.run_depth[run]) for run in runs})
    sets += [[run for run in runs if step.run_depth[run] == depth] for depth in depths[1:4]]
    found: list[list[Region]] = []
    for chosen in sets:
        regions = [
            Region(int(step.run_module[run]), int(step.run_start[run]), int(step.run_end[run]))
            for run in chosen
        ]
        regions = _allowed(step, regions)
        if regions and regions not in found:
            found.append(regions)
    return found


def _is_forward(step: TrainingStep, run: int) -> bool:
    start, end = step.run_start[run], step.run_end[run]
    return bool(
        step.run_module[run] != NONE and start < end and (step.call_phase[start:end] == FORWARD).all()
    )


def _blocks(step: TrainingStep) -> set[int]:
    """Return the modules that have a sibling of their class."""
    siblings: dict[tuple[tuple[str, ...], str], list[int]] = {}
    for module, (path, name) in enumerate(zip(step.module_path, step.module_class, strict=True)):
        siblings.setdefault((tuple(path[:-1]), name), []).append(module)
    return {module for group in siblings.values() if len(group) > 1 for module in group}


def _outermost(step: TrainingStep, runs: Iterable[int]) -> list[int]:
    """Return the runs that do not lie inside another one; a run is listed before those inside it."""
    found: list[int] = []
    end = -1
    for run in runs:
        if step.run_start[run] >= end:
            found.append(run)
            end = int(step.run_end[run])
    return found


def _allowed(step: TrainingStep, regions: list[Region]) -> list[Region]:
    """Return the regions of modules all of whose runs may run again."""
    refused = {
        region.key
        for region in regions
        if not step.call_repeatable[region.start : region.end].all() or outer_writers(step, region) is None
    }
    return [region for region in regions if region.key not in refused]


def outer_writers(step: TrainingStep, region: Region) -> set[int] | None:
    """Return the modules that write what was there before the region, as a batch norm its statistics.

    None if a region cannot run again because it does so outside any module, or to what an op of the block made.
    """
    inside = (step.write_call >= region.start) & (step.write_call < region.end)
    maker = step.buffer_maker[step.write_buffer]
    outer = inside & (maker < region.start)
    writers = set(step.write_module[outer].tolist())
    return None if NONE in writers or (maker[outer] != NONE).any() else writers


def own_regions(step: TrainingStep) -> list[tuple[Region, int, int]]:
    """Return the regions that the recorded program itself checkpoints, with the calls that ran them again.

    Such a region runs again with the memory that its forward was given, or at least calls the same ops; where several
    stretches of the forward do, the last that is free is taken, because regions run again in reverse order.
    """
    found: list[tuple[Region, int, int]] = []
    taken: set[int] = set()
    overloads = step.call_overload.tolist()
    forward = np.flatnonzero(step.call_phase == FORWARD)
    backward = np.flatnonzero(np.isin(step.call_phase, IN_BACKWARD))
    starts = np.cumsum(
        np.diff(backward, prepend=-2) > 1
    )  # which backward, of several, each of its calls is in
    for start, end in sorted(zip(step.again_start.tolist(), step.again_end.tolist(), strict=True)):
        wanted = overloads[start:end]
        before = forward[forward < start][::-1].tolist()
        place = next(
            (at for at in before if at not in taken and overloads[at : at + len(wanted)] == wanted), NONE
        )
        if place != NONE and wanted:
            taken.update(range(place, place + len(wanted)))
            found.append((Region(0, place, place + len(wanted)), start, end))
    found.sort(key=lambda entry: entry[0].start)
    turns: dict[int, int] = {}  # of the backward that follows
    numbered = []
    for region, start, end in found:
        following = int(np.searchsorted(backward, region.start))
        passes = int(starts[following]) if following < len(starts) else NONE
        key = turns[passes] = turns.get(passes, NONE) + 1
        numbered.append((Region(key, region.start, region.end), start, end))
    return numbered


def match(step: TrainingStep, seen: Sequence[Sequence[str]]) -> list[Region]:
    """Return where the regions that ran were recorded; a region that was not recorded is left out.

    Args:
        step: a step that was recorded without checkpoints. It may have several passes, each with all regions.
        seen: the overloads that each region called in forward, in the order in which the regions ran.
    """
    numbers = {name: number for number, name in enumerate(step.overloads)}
    wanted = [[numbers[name] for name in names if name in numbers] for names in seen]
    forward = np.flatnonzero(step.call_phase == FORWARD).tolist()
    recorded = [int(step.call_overload[call]) for call in forward]
    found: list[Region] = []
    cursor, before = 0, -1
    while len(found) > before:
        before = len(found)
        for key, calls in enumerate(wanted):
            place = _find(recorded, calls, cursor)
            if place != NONE:
                cursor = place + len(calls)
                found.append(Region(key, forward[place], forward[cursor - 1] + 1))
    return found


def _find(recorded: list[int], wanted: list[int], start: int) -> int:
    """Return where some numbers come next to each other from a place on, -1 if nowhere."""
    if wanted:
        for place in range(start, len(recorded) - len(wanted) + 1):
            if recorded[place : place + len(wanted)] == wanted:
                return place
    return NONE
