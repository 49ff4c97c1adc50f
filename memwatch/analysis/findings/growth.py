"""Growth: each step, or each pass of a loop, leaves memory behind that nothing reads again."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.added_at import files_of, lines_that_add
from memwatch.analysis.findings.finding import Finding
from memwatch.analysis.holders.paths import HolderPath
from memwatch.capture.schema import IN_BACKWARD, NONE
from memwatch.kinds.edges import EdgeKind
from memwatch.kinds.findings import FindingKind
from memwatch.own_code import is_program_code
from memwatch.program_text import is_unchanged
from memwatch.sizes import format_bytes
from memwatch.words import findings as words
from memwatch.words.places import cell_name, short_own_place, split_site

if TYPE_CHECKING:
    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.facts.step_curve import StepCurve
    from memwatch.analysis.findings.finding import Candidate
    from memwatch.analysis.findings.loops import Loops
    from memwatch.analysis.holders import Holders
    from memwatch.capture.columns import IntArray
    from memwatch.capture.paths import Path

# Series: a container gets more memory with each pass of a loop, as with each micro-batch or token of one call.
#
# The program need not mark these passes. One line makes a result in each pass, and the container keeps all of them.
# A pass may read the newest result, as a rollout reads its last state. The memory of a KV cache grows too, but each
# pass reads all of it, so no rule reports it. Results that wait for the op that joins them, and the activations of
# layers that run one after the other, are kept for a later use.
_FEWEST_PASSES: Final = 3
"""A step of four micro-batches keeps the results of three when its peak comes, in the last forward. A guess."""


def as_growth(candidate: Candidate, facts: Facts, loops: Loops) -> Candidate:
    """Return a candidate as growth, if a container keeps a result of each pass and a pass reads at most the newest.

    Objects that are linked, each to the one before it, keep the results like a container. Growth has its own advice:
    a `del` at the end of a pass would not end it.
    """
    if candidate.kind.row.del_order is None or not rate_bytes(candidate, facts, loops):
        return candidate
    rows = np.array(candidate.allocations)
    made, last = facts.allocations.op[rows], facts.use_bounds.last_op[rows]
    for group in _by_stack(rows, facts):
        order = np.argsort(made[group], kind="stable")
        # A pass may read the result of the pass before it, such as a state. If it reads an older one, it is no growth.
        if (last[group][order][:-2] >= made[group][order][2:]).any():
            return candidate
    return dataclasses.replace(candidate, kind=FindingKind.GROWTH)


def grows_over_iterations(candidate: Candidate, facts: Facts, loops: Loops) -> bool:
    """Return True for a series whose memory comes from several whole iterations of the program.

    One iteration may contain a series: layers that run one after the other. And if the recording has neither a step nor
    a backward, several graphs may wait for one backward, so memory of graphs does not count then.
    """
    if not facts.kept_across.are_told:
        return False
    is_growth = as_growth(candidate, facts, loops).kind is FindingKind.GROWTH
    is_other = candidate.kind is FindingKind.VOID or (candidate.kind.row.is_of_graph and _trains(facts))
    is_growth |= is_other and rate_bytes(candidate, facts, loops) > 0
    born_ns = facts.allocations.birth_ns[candidate.allocations]
    passes = np.unique(np.searchsorted(facts.ended_iterations_ns, born_ns))
    return is_growth and len(passes) >= _FEWEST_PASSES


def _trains(facts: Facts) -> bool:
    """Return True if steps or backwards, not only calls of a module, show where iterations end."""
    has_steps = any(facts.capture.rows(name) for name in ("steps", "step_curve"))
    return has_steps or bool(np.isin(facts.capture.tables["ops"]["phase"], IN_BACKWARD).any())


def rate_bytes(candidate: Candidate, facts: Facts, loops: Loops) -> int:
    """Return the bytes that each pass of a loop adds to a container; 0 if the candidate is not a series."""
    row = candidate.kind.row
    is_of_variable = row.del_order is not None or candidate.kind in (FindingKind.VOID, FindingKind.GROWTH)
    if not is_of_variable and not row.is_of_graph:
        return 0
    path = HolderPath(candidate.holder.edges) if candidate.holder.edges else None
    if path is None or not (path.ends_in_container or path.links_objects):
        return 0
    rows = np.array(candidate.allocations)
    # the layers of an `nn.Sequential` have one call stack, and each pass adds one result of each layer
    modules = _modules(rows, facts)
    groups = [
        of_layer
        for group in _by_stack(rows, facts)
        for module in np.unique(modules[group]).tolist()
        if len(of_layer := group[modules[group] == module]) >= _FEWEST_PASSES
    ]
    counts = [loops.count_passes(facts.allocations.op[rows[group]]) for group in groups]
    # One line may make several results in one pass, for a dictionary that each step makes anew. Count only series from
    # several passes.
    series = [group for group, count in zip(groups, counts, strict=True) if count >= _FEWEST_PASSES]
    passes = min((len(group) for group in series), default=1)
    return sum(
        int(np.median(facts.allocations.nbytes[rows[group]])) * round(len(group) / passes) for group in series
    )


def lines_that_fill(edges: Path, rows: IntArray, facts: Facts) -> tuple[str, ...]:
    """Return `file:line` of each line of the program that adds to the container on a path; empty if not known.

    The search reads the program's files. If one of them has changed since the run, its lines may have moved.

    Args:
        edges: the path from the root to the memory.
        rows: the allocations that the container keeps.
        facts: the facts of the capture.
    """
    entries = [at for at, edge in enumerate(edges) if edge.kind.row.is_entry]
    if not entries or entries[-1] - entries[0] != len(entries) - 1:  # with two containers, either may grow
        return ()
    made = (split_site(site)[0] for site in facts.made_by.own_line[rows].tolist() if site)
    files = {file for file in (*files_of(edges), *made) if is_program_code(file)}
    started_s = float(facts.capture.meta.get("started_s", 0.0))
    is_cell = {file: bool(cell_name(file)) for file in files}
    if not all(is_cell[file] or is_unchanged(file, started_s) for file in files):
        return ()
    is_global = edges[0].kind is EdgeKind.GLOBAL
    if is_global and edges[0].file is None and not all(is_cell.values()):
        return ()  # the file of the variable's module is not known
    found = lines_that_add(edges, edges[entries[0]], sorted(files))
    return tuple(f"{line.file}:{line.line}" for line in found)


def _modules(rows: IntArray | slice, facts: Facts) -> IntArray:
    """Return the module that ran when each allocation was made, NONE if it is not known."""
    module = np.append(facts.capture.tables["ops"]["module"], NONE)
    return module[np.minimum(facts.allocations.op[rows], len(module) - 1)]


def _by_stack(rows: IntArray, facts: Facts) -> list[IntArray]:
    """Group the results that one op at one line made, if at least `_FEWEST_PASSES` of them are alive at one time.

    While such a series goes on, none of the op's results dies. So the results in a container that each step fills anew
    are no series.

    Returns:
        Positions in `rows`, one array for each series.
    """
    allocations, ops = facts.allocations, facts.capture.tables["ops"]
    # the ops of one line have one call stack; their names tell them apart
    numbers = np.where(
        ops["stack"] == NONE, NONE, ops["stack"].astype(np.int64) * (int(ops["name"].max()) + 1) + ops["name"]
    )
    every = np.append(numbers, NONE)[np.minimum(allocations.op, len(numbers))]
    every[(allocations.op == NONE) | (allocations.storage == NONE)] = NONE  # the workspace of a kernel
    places_of = every[rows]
    # the layers of an `nn.Sequential` have one call stack too; one of them may drop what another one keeps
    modules = _modules(slice(None), facts)
    found, counts = np.unique(places_of[places_of != NONE], return_counts=True)
    series: list[IntArray] = []
    for place in found[counts >= _FEWEST_PASSES].tolist():
        members, made_there = np.flatnonzero(places_of == place), np.flatnonzero(every == place)
        whole = _kept(members, rows, made_there, allocations)
        parts = [whole]
        if whole is None:
            parts = [
                _kept(
                    members[modules[rows[members]] == module],
                    rows,
                    made_there[modules[made_there] == module],
                    allocations,
                )
                for module in np.unique(modules[rows[members]]).tolist()
            ]
        series += [part for part in parts if part is not None]
    return series


def _kept(
    members: IntArray, rows: IntArray, made_there: IntArray, allocations: Allocations
) -> IntArray | None:
    """Return the results of one place that are alive together; None if they are too few or one died meanwhile."""
    if not len(members):
        return None
    last = int(allocations.birth_event[rows[members]].max())
    together = members[_ends(allocations, rows[members]) > last]
    if len(together) < _FEWEST_PASSES:
        return None
    first = int(allocations.birth_event[rows[together]].min())
    ends = _ends(allocations, made_there)
    return None if ((ends > first) & (ends <= last)).any() else together


def _ends(allocations: Allocations, rows: IntArray) -> IntArray:
    """Return the event after the life of each allocation, past all events where its end is not recorded."""
    deaths = allocations.death_event[rows]
    return np.where(deaths == NONE, np.iinfo(deaths.dtype).max, deaths)


_FEWEST_STEPS: Final = 8  # a shorter growth may be chance; a guess
_PARTS: Final = 8  # equal parts of the growth that must each grow; a guess
_MOST_OF_ONE_PART: Final = 0.5
"""A share of the growth. A guess: a cache that is filled once grows in a single part, and is no growth."""


class _Growth(NamedTuple):
    """The steps between which the least live bytes grew, and by how much."""

    first: int
    last: int
    nbytes: int
    predicted_peak_bytes: int


def find_growth(facts: Facts, holders: Holders, least_bytes: int) -> list[Finding]:
    """Return the growth from step to step as a finding, with the line that made most of the memory that stayed.

    Args:
        facts: the facts of the capture.
        holders: the holders of all memory.
        least_bytes: growth of fewer bytes is not reported.
    """
    steps = facts.steps
    growth = _growth(steps)
    if growth is None or growth.nbytes < least_bytes:
        return []
    rows, line = _made_by_most(facts, steps, growth)
    found = holders.describe(rows[:1].tolist(), _event_after(facts, int(steps.end_ns[growth.last])))
    holder = found[0] if found else None
    rate_bytes = growth.nbytes / (growth.last - growth.first)
    added_at = lines_that_fill(holder.edges, rows, facts) if holder else ()
    advice = words.GROWTH.format(
        rate=format_bytes(rate_bytes),
        step=growth.first,
        nbytes=format_bytes(growth.nbytes),
        made=words.MADE_AT.format(line=line) if line else "",
        added=words.added_phrase(added_at),
        advice=(holder.kind.row.drop if holder else None) or words.DROP_ANY,
        peak=words.PEAK if facts.cut_off is None else words.PEAK_SO_FAR,
        alone=format_bytes(growth.predicted_peak_bytes),
    )
    return [
        Finding(
            kind=FindingKind.GROWTH,
            nbytes=growth.nbytes,
            holder=holder.told if holder else words.UNSEEN_GROWTH,
            site=holder.site if holder else "",
            advice=advice,
            path=holder.path if holder else "",
            predicted_peak_bytes=growth.predicted_peak_bytes,
            together_peak_bytes=growth.predicted_peak_bytes,
            storages=tuple(rows.tolist()),
            remark=holder.told.removeprefix(holder.words) if holder else "",
            growth_bytes=round(rate_bytes),
            added_at=added_at,
        )
    ]


def _growth(steps: StepCurve) -> _Growth | None:
    """Return the growth that goes on until the last whole step, or None."""
    count = len(steps) - 1  # the last step ends with the block, which drops the memory that this step leaves
    if count <= _FEWEST_STEPS:
        return None
    floors = np.asarray(steps.floor_bytes[:count], dtype=np.int64)
    lowest_ahead = np.minimum.accumulate(floors[::-1])[::-1]
    first, last = int(np.flatnonzero(floors == lowest_ahead[0])[-1]), count - 1
    if not first:  # memory that the first step makes for good, such as an optimizer's state, is not growth
        first = 1 + int(np.flatnonzero(floors[1:] == lowest_ahead[1])[-1])
    total = int(lowest_ahead[last] - lowest_ahead[first])
    if last - first < _FEWEST_STEPS or total <= 0:
        return None
    bounds = np.linspace(first, last, _PARTS + 1).astype(int)
    of_parts = np.diff(lowest_ahead[bounds])
    if (of_parts <= 0).sum() > 1 or of_parts.max() > _MOST_OF_ONE_PART * total:
        return None
    grown = lowest_ahead - lowest_ahead[first]
    grown[:first] = 0
    rest_bytes = max(int((steps.peak_bytes[:count] - grown).max()), int(steps.peak_bytes[-1]) - total)
    return _Growth(first, last, total, rest_bytes)


def _made_by_most(facts: Facts, steps: StepCurve, growth: _Growth) -> tuple[IntArray, str]:
    """Find memory that was made in the growth and outlives it. Return the largest line's allocations, and the line."""
    allocations, made = facts.allocations, facts.made_by
    start_ns, end_ns = int(steps.end_ns[growth.first]), int(steps.end_ns[growth.last])
    lives = (allocations.death_ns == NONE) | (allocations.death_ns > end_ns)
    grew = allocations.counted & lives & (allocations.birth_ns > start_ns) & (allocations.birth_ns <= end_ns)
    rows = np.flatnonzero(grew & (made.stack != NONE))
    if not len(rows):
        return rows, ""
    names = [
        short_own_place(line, own)
        for line, own in zip(made.line.of(rows), made.own_line.of(rows), strict=True)
    ]
    lines, of_line = np.unique(np.array(names, dtype=object).astype(str), return_inverse=True)
    most = int(np.argmax(np.bincount(of_line, weights=allocations.nbytes[rows])))
    return rows[of_line == most], str(lines[most])


def _event_after(facts: Facts, time_ns: int) -> int:
    return max(int(np.searchsorted(facts.curve.time_ns, time_ns, side="right")) - 1, 0)
