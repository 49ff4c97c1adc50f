"""Rules for memory that another choice would not need. Its references are not at fault.

The choices are the optimizer's step, the pieces of an op's input, the size of checkpointed regions, and the place of a
conversion. For every finding, `search.py` decides whether a change is worth it: by how far the peak would fall.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.allocations import WORKSPACE
from memwatch.analysis.facts.biographies import sources_of
from memwatch.analysis.facts.coded import Grouped
from memwatch.analysis.facts.names import CONVERSION
from memwatch.analysis.findings.finding import Candidate
from memwatch.analysis.holders import Holder, HolderEvidence, HolderKind
from memwatch.capture.schema import ACCESSES, BACKWARD, IN_BACKWARD, NONE, OPTIMIZER, PHASES
from memwatch.kinds.findings import FindingKind
from memwatch.kinds.roles import ROLES
from memwatch.own_code import CodeOwner
from memwatch.words.findings import (
    AUTOCAST_CACHE,
    BUCKETS,
    CONVERTED_COPY,
    FLOAT32_COPY,
    LOOP_STEP,
    OPTIMIZER_STEP,
    REGION,
)
from memwatch.words.holders import KERNEL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.findings.moment import Moment
    from memwatch.capture.columns import IntArray


def alive_then(kind: FindingKind, holder: Holder, allocations: list[int], moment: Moment) -> list[Candidate]:
    """Return one candidate if some allocations are alive at a moment, else none.

    Args:
        kind: the kind of the candidate.
        holder: who keeps the allocations.
        allocations: the pieces of memory, of the whole capture.
        moment: the moment of the peak.
    """
    alive = [row for row in allocations if moment.alive[row]]
    nbytes = int(moment.facts.allocations.nbytes[alive].sum())
    return [Candidate(kind, holder, (), allocations, nbytes)] if nbytes else []


_WITH_FUSED_STEP: Final = tuple(f"torch/optim/{name}.py" for name in ("adam", "adamw", "sgd", "adagrad"))
"""The files of torch's optimizers that take `fused=True` (torch 2.13)."""


def find_optimizer(peak: Moment) -> list[Candidate]:
    """Return the temporaries of the optimizer's step, if the peak lies in it."""
    op = peak.op
    if op < 0 or PHASES[peak.facts.op_phase(op)] != "optimizer":
        return []
    line, evidence = peak.facts.op_line(op), HolderEvidence.STRUCTURE
    foreach_step = Holder(HolderKind.OPTIMIZER, OPTIMIZER_STEP, line, evidence=evidence)
    loop_step = Holder(HolderKind.OPTIMIZER, LOOP_STEP, line, evidence=evidence)
    lists = ForeachSteps(peak.facts)
    in_lists = alive_then(FindingKind.OPTIMIZER, foreach_step, lists.temporaries, peak)
    return [
        *(dataclasses.replace(candidate, spares=lists.spared_bytes()) for candidate in in_lists),
        *alive_then(FindingKind.FUSED, loop_step, loop_temporaries(peak.facts), peak),
    ]


_LOOP_TEMPORARIES: Final = {
    "Adadelta": 2, "Adagrad": 1, "Adam": 2, "AdamW": 2, "Adamax": 1, "NAdam": 2, "RAdam": 2, "RMSprop": 1, "SGD": 0,
}  # fmt: skip
"""The most temporaries that a loop over parameters has at once, each as large as the largest parameter.

Measured with torch 2.13 (`tests/ways/test_ways_foreach.py`). Weight decay that is added to the gradients, and
`maximize=True`, make one more. So does Nesterov momentum.
"""
_UNMEASURED: Final = ("ASGD", "Rprop")
"""Optimizers of torch whose temporaries do not follow this rule."""


class ForeachSteps:
    """The steps of an optimizer that updates many parameters at once, and what a loop over parameters would spare.

    A loop makes its temporaries for one parameter at a time. A subclass of an optimizer of torch counts as the class
    whose code runs. For optimizers outside `_LOOP_TEMPORARIES`, memwatch assumes that a loop needs the largest
    temporary of each op.

    Attributes:
        temporaries: the allocations of the steps' temporaries, except those that a loop needs too.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        allocations, steps = facts.allocations, facts.capture.tables["steps"]
        by_op: dict[int, list[int]] = {}
        for row in np.flatnonzero(_temporary(facts) & _is_foreach(facts)).tolist():
            by_op.setdefault(int(allocations.op[row]), []).append(row)
        self.temporaries: list[int] = []
        # the bytes that a loop needs, the first op for which it does, and the op after the last
        self._kept: list[tuple[int, int, int]] = []
        # A recording may end inside a step. That step has no row, and counts for the optimizer of the other steps.
        class_names = [facts.strings[name].removesuffix(".step") for name in steps["name"].tolist()]
        spans = list(zip(steps["op"].tolist(), steps["end_op"].tolist(), class_names, strict=True))
        phase = facts.capture.tables["ops"]["phase"]
        if len(phase) and phase[-1] == OPTIMIZER:
            start = int(np.flatnonzero(phase != OPTIMIZER).max(initial=NONE)) + 1
            if all(end <= start for _, end, _ in spans):
                spans.append((start, len(phase), class_names[-1] if len({*class_names}) == 1 else ""))
        ops = sorted(by_op)
        for start, end, called in _outermost(spans):
            groups = [by_op[op] for op in ops[bisect_left(ops, start) : bisect_left(ops, end)]]
            # it may be a subclass of an optimizer of torch
            class_name = called if called in _LOOP_TEMPORARIES else self._class_that_runs(groups)
            if not groups or class_name in _UNMEASURED:
                continue
            if class_name in _LOOP_TEMPORARIES:
                self.temporaries += [row for group in groups for row in group]
                self._keep_for_loop(start, end, _LOOP_TEMPORARIES[class_name])
                continue
            for group in groups:
                self.temporaries += sorted(group, key=lambda row: -int(allocations.nbytes[row]))[1:]
        self.temporaries.sort()

    def _class_that_runs(self, groups: list[list[int]]) -> str:
        """Return the optimizer of torch whose code made some temporaries; "" if there is none or several."""
        stacks = {int(self._facts.made_by.stack[row]) for group in groups for row in group}
        files = {
            frames[0].file.replace("\\", "/")
            for stack in stacks
            if stack != NONE and (frames := self._facts.call_stacks.frames(stack))
        }
        names = {
            name
            for name in (*_LOOP_TEMPORARIES, *_UNMEASURED)
            for file in files
            if file.endswith(f"torch/optim/{name.lower()}.py")
        }
        return names.pop() if len(names) == len(files) == 1 else ""

    def spared_bytes(self) -> IntArray:
        """Return, per event, the live bytes that a loop over parameters would spare; negative if it needs more."""
        facts, allocations = self._facts, self._facts.allocations
        starts_ns, time_ns = facts.capture.tables["ops"]["start_ns"], facts.curve.time_ns
        change = np.zeros(len(time_ns) + 1, dtype=np.int64)
        rows = np.array(self.temporaries, dtype=np.int64)
        nbytes, death = allocations.nbytes[rows].astype(np.int64), allocations.death_event[rows]
        np.add.at(change, np.maximum(allocations.birth_event[rows], 0), nbytes)
        np.subtract.at(change, np.where(death == NONE, len(time_ns), death), nbytes)
        for kept_bytes, start, end in self._kept:
            until = starts_ns[end] if end < len(starts_ns) else np.iinfo(np.int64).max
            begin_event, end_event = np.searchsorted(time_ns, [starts_ns[start], until])
            change[begin_event] -= kept_bytes
            change[end_event] += kept_bytes
        return np.cumsum(change)[:-1]

    def _keep_for_loop(self, start_op: int, end_op: int, count: int) -> None:
        """Note the temporaries of a loop over the parameters that a step updates with lists.

        Args:
            start_op: the first op of the step.
            end_op: the op after its last.
            count: the most temporaries for one parameter, without weight decay.
        """
        facts = self._facts
        uses, roles = facts.capture.tables["uses"], facts.capture.tables["roles"]
        rows = np.flatnonzero((uses["op"] >= start_op) & (uses["op"] < end_op))
        storage, op = uses["storage"][rows], uses["op"][rows]
        of_gradient, of_parameter, of_state = (
            np.isin(storage, roles["storage"][roles["role"] == ROLES.index(role)])
            for role in ("gradient", "parameter", "optimizer state")
        )
        sizes = facts.allocations.nbytes[facts.allocations.rows_of(np.unique(storage[of_gradient]))]
        # the first op makes new tensors from gradients, to add weight decay or for `maximize`
        makes = np.isin(op, op[uses["access"][rows] == ACCESSES.index("output")])
        names = facts.capture.tables["ops"]["name"]
        reads_both = set(op[of_parameter].tolist())
        changes_gradients = any(
            "_foreach_neg." in (name := facts.strings[names[each]])
            or (each in reads_both and "_foreach_add." in name)
            for each in np.unique(op[makes & of_gradient]).tolist()
        )
        # Nesterov momentum adds the state to the gradients. The step with lists does so in place. A loop makes a new
        # tensor.
        writes_gradients = (uses["access"][rows] == ACCESSES.index("write")) & ~of_state & ~of_parameter
        is_nesterov = any(
            "_foreach_add_." in facts.strings[names[each]]
            for each in np.intersect1d(op[writes_gradients], op[of_state]).tolist()
        )
        count += changes_gradients + is_nesterov
        self._kept.append((int(sizes.max(initial=0)) * count, start_op, end_op))


def _outermost(spans: list[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
    """Yield the steps that are not within another. The step of a subclass may call the step of its base class."""
    last = NONE
    for start, end, name in sorted(spans, key=lambda span: (span[0], -span[1])):
        if end > last:
            last = end
            yield start, end, name


def loop_temporaries(facts: Facts) -> list[int]:
    """Return the memory that a loop over parameters makes in the steps of an optimizer that has a fused step too."""
    rows = np.flatnonzero(_temporary(facts) & ~_is_foreach(facts))
    stacks, of_row = np.unique(facts.made_by.stack[rows], return_inverse=True)
    files = [
        frames[0].file.replace("\\", "/")
        if stack != NONE and (frames := facts.call_stacks.frames(stack))
        else ""
        for stack in stacks.tolist()
    ]
    has_fused_step = np.array([file.endswith(_WITH_FUSED_STEP) for file in files], dtype=bool)
    return rows[has_fused_step[of_row]].tolist() if len(rows) else []


def _temporary(facts: Facts) -> NDArray[np.bool_]:
    is_made_by_op: NDArray[np.bool_] = facts.allocations.op != NONE
    return facts.categories.category.isin(["temporary", "workspace"]) & is_made_by_op


def _is_foreach(facts: Facts) -> NDArray[np.bool_]:
    return facts.made_by.op_name.that(lambda name: "_foreach_" in name)


_LEAST_RATIO: Final = 0.5
"""The least share of the peak increase. A kernel of a plain U-Net has 26 % of it and a kernel of a plain LSTM 13 %.

For such a share, users would not cut the input of these ops in pieces. Half is a guess.
"""


def find_workspace(peak: Moment) -> list[Candidate]:
    """Return the workspace of the op at the peak, and of the same op each time that the same line runs it."""
    facts, op = peak.facts, peak.op
    if op < 0:
        return []
    allocations, ops = facts.allocations, facts.capture.tables["ops"]
    lines = facts.places.lines(slice(None))
    same = (ops["name"] == ops["name"][op]) & (lines == facts.op_line(op))[ops["stack"]]
    made = allocations.op != NONE
    found = np.flatnonzero((allocations.origin == WORKSPACE) & made & same[np.maximum(allocations.op, 0)])
    holder = Holder(
        HolderKind.KERNEL,
        KERNEL.format(op=facts.op_name(op)),
        facts.op_line(op),
        subject=(facts.op_name(op),),
        evidence=HolderEvidence.STRUCTURE,
    )
    least_bytes = _LEAST_RATIO * facts.curve.peak_increase_bytes
    candidates = alive_then(FindingKind.WORKSPACE, holder, found.tolist(), peak)
    return [candidate for candidate in candidates if candidate.nbytes >= least_bytes]


def find_recompute(peak: Moment) -> list[Candidate]:
    """Return the memory that the region at the peak recomputes too early, if smaller regions would avoid it."""
    facts = peak.facts
    made = facts.allocations.op[peak.alive]
    runs = facts.recomputes.run_of_op[made[made != NONE]]
    if not (runs != NONE).any():
        return []
    sizes = facts.allocations.nbytes[peak.alive][made != NONE]
    largest = int(np.argmax(np.bincount(runs[runs != NONE], sizes[runs != NONE])))
    sites = facts.places.lines(facts.recomputes.stack)
    site = str(sites[largest])
    if facts.call_stacks.owner_of_file.get(site.rpartition(":")[0]) != CodeOwner.PROGRAM:
        return []  # a library's own region, which users cannot make smaller
    split = SmallerRegions(facts, np.flatnonzero(sites == site).tolist())
    evidence = HolderEvidence.STRUCTURE
    holder = Holder(HolderKind.CHECKPOINT, REGION, site, is_own=True, subject=(site,), evidence=evidence)
    found = alive_then(FindingKind.RECOMPUTE, holder, split.spared, peak)
    return [dataclasses.replace(candidate, spares=split.bytes_of_event()) for candidate in found]


# Smaller regions: the memory that would be alive if every module in a checkpointed region were a region of its own.
#
# The modules would be recomputed one after the other, each right before its own backward. In return, the tensors that
# pass from one module to the next would be kept from the forward on.
class _Part(NamedTuple):
    """A module call within a region that ran again: its ops."""

    start_op: int
    end_op: int


class SmallerRegions:
    """The regions that a user would split, and the bytes that this would save.

    For each run only the rows of its own ops are read, because the number of runs grows with the program.

    Args:
        facts: the facts of the capture.
        runs: the runs of one region, or of all regions that one line calls.
    """

    def __init__(self, facts: Facts, runs: list[int]) -> None:
        self._facts = facts
        self._change = np.zeros(len(facts.curve.live_bytes) + 1, dtype=np.int64)
        self._uses, self._calls = facts.capture.tables["uses"], facts.capture.tables["calls"]
        self._allocations_by_op = Grouped(facts.allocations.op)
        self._uses_by_op, self._uses_by_storage = Grouped(self._uses["op"]), Grouped(self._uses["storage"])
        self._calls_by_start = Grouped(self._calls["start_op"])
        self._last_forward, self._last_backward = _last_ops(facts)
        self._outside_steps = np.flatnonzero(facts.capture.tables["ops"]["phase"] != OPTIMIZER)
        self.spared: list[int] = []
        """Allocations that would be made later, right before the backward of their part."""
        for run in runs:
            self._split(run)

    def bytes_of_event(self) -> IntArray:
        """Return, per event, the bytes that would not be live; negative where more would be."""
        return np.cumsum(self._change)[:-1]

    def _split(self, run: int) -> None:
        """Note how the live bytes change if each module call in a region were a region of its own."""
        facts = self._facts
        ops = facts.recomputes.ops_of(run)
        after = int(ops[-1]) + 1 if len(ops) else facts.capture.rows("ops")
        parts = self._parts(ops) if after < facts.capture.rows("ops") else []
        if not parts:
            return
        number = _PartNumbers(parts, int(ops[0]), after)
        made = facts.allocations.op
        rows = self._allocations_by_op.within(int(ops[0]), after)
        rows = rows[
            (facts.recomputes.run_of_op[made[rows]] == run) & (facts.allocations.storage[rows] != NONE)
        ]
        kept = np.sort(rows[facts.are_alive_at(rows, self._event_of(after) - 1)])
        elsewhere = np.isin(facts.allocations.storage[kept], self._read_elsewhere(ops, number))
        is_inside = (number.of(made[kept]) != NONE) & ~elsewhere
        inside = kept[is_inside]
        begins = dict(zip(inside.tolist(), self._backward_of_parts(len(parts), inside, number), strict=True))
        before = self._event_of(self._start_of_forward(int(ops[0])))
        for row in kept.tolist():
            birth = int(facts.allocations.birth_event[row])
            if row not in begins:
                self._add(row, before, birth, kept=True)
            elif begins[row] > birth:
                self.spared.append(row)
                self._add(row, birth, begins[row], kept=False)

    def _add(self, row: int, start: int, end: int, *, kept: bool) -> None:
        death = int(self._facts.allocations.death_event[row])
        end = end if death == NONE else min(end, death)
        nbytes = int(self._facts.allocations.nbytes[row]) * (-1 if kept else 1)
        if start < end:
            self._change[start] += nbytes
            self._change[end] -= nbytes

    def _event_of(self, op: int) -> int:
        """Return the first event at or after the start of an op."""
        facts = self._facts
        start_ns = facts.capture.tables["ops"]["start_ns"]
        return (
            int(np.searchsorted(facts.curve.time_ns, start_ns[op]))
            if op < len(start_ns)
            else len(self._change) - 1
        )

    def _read_elsewhere(self, ops: IntArray, number: _PartNumbers) -> IntArray:
        """Return the storages that an op of the region reads in another part than they were made in."""
        rows = self._uses_by_op.within(int(ops[0]), int(ops[-1]) + 1)
        is_read = self._uses["access"][rows] != ACCESSES.index("output")
        rows = rows[is_read & np.isin(self._uses["op"][rows], ops)]
        storage, reader = self._uses["storage"][rows], self._uses["op"][rows]
        elsewhere = number.of(self._facts.allocations.op[storage]) != number.of(reader)
        read: IntArray = storage[elsewhere]
        return read

    def _backward_of_parts(self, count: int, inside: IntArray, number: _PartNumbers) -> list[int]:
        """Return, for each allocation, the event when the backward of its part first reads the part's tensors."""
        facts, part = self._facts, number.of(self._facts.allocations.op[inside])
        first = np.full(count, facts.capture.rows("ops"), dtype=np.int64)
        phase, backward = facts.capture.tables["ops"]["phase"], BACKWARD
        storages = facts.allocations.storage[inside]
        for storage, part_number in zip(storages.tolist(), part.tolist(), strict=True):
            readers = self._uses["op"][self._uses_by_storage.within(storage, storage + 1)]
            readers = readers[phase[readers] == backward]
            first[part_number] = min(first[part_number], readers.min(initial=first[part_number]))
        return [self._event_of(op) for op in first[part].tolist()]

    def _parts(self, ops: IntArray) -> list[_Part]:
        """Return the module calls of a region, at the least depth with several calls."""
        start, end, depth = (self._calls[name] for name in ("start_op", "end_op", "depth"))
        rows = np.sort(self._calls_by_start.within(int(ops[0]), int(ops[-1]) + 1))
        rows = rows[(end[rows] <= ops[-1] + 1) & (end[rows] > start[rows])]
        for least in np.unique(depth[rows]).tolist():
            calls = rows[depth[rows] == least]
            if len(calls) > 1:
                return [_Part(int(start[call]), int(end[call])) for call in calls]
        return []

    def _start_of_forward(self, op: int) -> int:
        """Return the first op of the forward of an op of backward: after the backward and the steps before it."""
        forward = int(self._last_forward[op])
        last_backward = int(self._last_backward[forward]) if forward != NONE else NONE
        after = int(np.searchsorted(self._outside_steps, last_backward + 1))
        return min(int(self._outside_steps[after]), op) if after < len(self._outside_steps) else op


class _PartNumbers:
    """The part of each op of a run, by number."""

    def __init__(self, parts: list[_Part], start_op: int, end_op: int) -> None:
        self._start_op = start_op
        self._numbers = np.full(end_op - start_op + 1, NONE, dtype=np.int64)  # the last is of all other ops
        for number, part in enumerate(parts):
            self._numbers[part.start_op - start_op : part.end_op - start_op] = number

    def of(self, ops: IntArray) -> IntArray:
        """Return the number of the part of each op; -1 for ops outside all parts."""
        at = ops - self._start_op
        is_within = (at >= 0) & (at < len(self._numbers) - 1)
        numbers: IntArray = self._numbers[np.where(is_within, at, -1)]
        return numbers


def _last_ops(facts: Facts) -> tuple[IntArray, IntArray]:
    """Return, for each op, the last op so far that is of no backward, and the last that is of one; -1 if none."""
    in_backward = np.isin(facts.capture.tables["ops"]["phase"], IN_BACKWARD)
    ops = np.arange(len(in_backward))
    forward, backward = (
        np.maximum.accumulate(np.where(is_one, ops, NONE)) for is_one in (~in_backward, in_backward)
    )
    return forward, backward


_CONVERSIONS: Final = (CONVERSION, "aten.clone", "aten.copy", "aten.contiguous")
"""Prefixes of the names of ops that copy a tensor, to another type or in another layout."""


def find_twice(peak: Moment) -> list[Candidate]:
    """Return the tensors that autograd saves both as they are and converted, such as a copy in another type.

    If the program converts the tensor once, before the first op that saves it, autograd saves only one of the two. So
    the change spares the copy, or the source if the copy has fewer bytes.
    """
    if peak.op < 0:
        return []
    facts, made = peak.facts, peak.facts.made_by
    source_of_copy = _converted_copies(peak)
    if not source_of_copy:
        return []
    allocations, sizes = facts.allocations, facts.allocations.nbytes
    largest = max(source_of_copy, key=lambda row: int(sizes[row]))
    subject, evidence = (FindingKind.TWICE,), HolderEvidence.STRUCTURE
    holder = Holder(
        HolderKind.AUTOGRAD_NODE, CONVERTED_COPY, str(made.line[largest]), subject=subject, evidence=evidence
    )
    copies_of: dict[int, list[int]] = {}
    for copy, source in source_of_copy.items():
        copies_of.setdefault(source, []).append(copy)
    end, spans = len(facts.curve.live_bytes), []
    for source, copies in copies_of.items():
        smallest = min(copies, key=lambda row: int(sizes[row]))
        is_narrower = sizes[smallest] < sizes[source]
        if is_narrower and _is_saved_by_maker(peak, source):
            continue
        for row in (source, *copies):
            if row != (smallest if is_narrower else source):
                start = int(allocations.birth_event[smallest if row == source else row])
                death = int(allocations.death_event[row])
                spans.append((row, start, end if death == NONE else death))
    rows = [row for row, _, _ in spans]
    found = alive_then(FindingKind.TWICE, holder, rows, peak)
    return [dataclasses.replace(candidate, spans=tuple(spans)) for candidate in found]


def _is_saved_by_maker(peak: Moment, row: int) -> bool:
    """Return True if the op that made a tensor saves it, as `tanh` does. No conversion can come before the op saves."""
    saved, allocations = peak.evidence.saved, peak.facts.allocations
    return bool((saved.saving_op[saved.storage == allocations.storage[row]] == allocations.op[row]).any())


def _converted_copies(peak: Moment) -> dict[int, int]:
    """Return the saved conversions of other saved tensors, with their sources."""
    facts, categories = peak.facts, peak.facts.categories.category
    saved = set(peak.evidence.saved.storage.tolist()) - {NONE}
    is_conversion = facts.made_by.op_name.that(lambda name: name.startswith(_CONVERSIONS))
    copies = [row for row in saved if is_conversion[row]]
    source_of = sources_of(facts.capture, facts.allocations.op[copies])
    return {
        row: source
        for row in copies
        if (source := source_of.get(int(facts.allocations.op[row]), NONE)) in saved
        and categories[source] == "activation"
        and _is_chosen(facts, row)
    }


def _is_chosen(facts: Facts, row: int) -> bool:
    """Return True for a copy that a program or autocast makes. torch's own functions always copy."""
    if facts.made_by.op_name[row].startswith(CONVERSION):
        return True
    stack = int(facts.capture.tables["ops"]["stack"][facts.allocations.op[row]])
    return all(call.calls_torch for call in facts.call_stacks.frames(stack)[:1])


def find_buckets(peak: Moment) -> list[Candidate]:
    """Return the gradients that were copied into a bucket that is alive at the peak."""
    facts, categories = peak.facts, peak.facts.categories
    is_bucket = categories.role.isin(["bucket"]) & ~categories.category.isin(["gradient"])
    buckets = np.flatnonzero(is_bucket).tolist()
    if not any(peak.alive[row] for row in buckets):
        return []
    holder = Holder(
        HolderKind.COMMUNICATION,
        BUCKETS,
        _line_that_builds(facts, buckets),
        subject=(FindingKind.BUCKETS,),
        evidence=HolderEvidence.STRUCTURE,
    )
    return alive_then(FindingKind.BUCKETS, holder, _gradients_in(facts, buckets), peak)


def _gradients_in(facts: Facts, buckets: list[int]) -> list[int]:
    """Return the gradients that an op read together with a bucket: the reducer copies each into its place."""
    uses, category = facts.capture.tables["uses"], facts.categories.category
    copies = np.unique(uses["op"][np.isin(uses["storage"], facts.allocations.storage[buckets])])
    copied = np.unique(uses["storage"][np.isin(uses["op"], copies)])
    return [row for row in facts.allocations.rows_of(copied).tolist() if category[row] == "gradient"]


def _line_that_builds(facts: Facts, buckets: list[int]) -> str:
    """Return the line that made the largest bucket outside all modules.

    DDP makes its buckets again in a later forward, which is inside a module. These do not count.
    """
    module, made = facts.capture.tables["ops"]["module"], facts.allocations.op
    first = [row for row in buckets if NONE < made[row] < len(module) and module[made[row]] == NONE]
    largest = max(first, key=lambda row: int(facts.allocations.nbytes[row]), default=NONE)
    return str(facts.made_by.line[largest]) if first else ""


def find_autocast(peak: Moment) -> list[Candidate]:
    """Return the cached copies that are idle after the peak: neither an op nor autograd needs them."""
    facts, packs_at = peak.facts, peak.evidence.holders.packs_at
    rows = np.flatnonzero(np.isin(facts.allocations.storage, list(facts.autocast_copies))).tolist()
    copies = [row for row in rows if not packs_at(row, peak.op)]
    idle = [row for row in copies if facts.biographies.last_event(row) < peak.event]
    largest = max(idle, key=lambda row: int(facts.allocations.nbytes[row]), default=None)
    if largest is None:
        return []
    holder = Holder(
        HolderKind.AUTOCAST_CACHE,
        AUTOCAST_CACHE,
        str(facts.made_by.line[largest]),
        subject=(FindingKind.AUTOCAST,),
        evidence=HolderEvidence.STRUCTURE,
    )
    return alive_then(FindingKind.AUTOCAST, holder, copies, peak)


_LOWER: Final = ("bfloat16[", "float16[")
"""Prefixes of the recorded shapes of tensors in half precision."""
_FUNCTIONAL: Final = ("torch/nn/functional.py", "torch\\nn\\functional.py")
"""The ends of the path of the file whose functions call ops for the program."""


def find_float32(peak: Moment) -> list[Candidate]:
    """Return the float32 copies that autograd keeps for an op that the program itself calls.

    If a library calls the op, its user cannot change the precision. If autograd saves the tensor itself too, the copy
    is a case of `find_twice`.
    """
    facts, packs_at = peak.facts, peak.evidence.holders.packs_at
    saved = set(peak.evidence.saved.storage.tolist()) - {NONE}
    is_conversion = facts.made_by.op_name.that(lambda name: name.startswith(CONVERSION))
    converted = [row for row in saved if is_conversion[row]]
    source_of = sources_of(facts.capture, facts.allocations.op[converted])
    shape_of = _shapes(facts, {*converted, *source_of.values()})
    copies = [
        row
        for row in converted
        if shape_of.get(row, "").startswith("float32[")
        and (source := source_of.get(int(facts.allocations.op[row]), NONE)) not in saved
        and shape_of.get(source, "").startswith(_LOWER)
        and packs_at(row, peak.op)
        and _is_called_directly(facts, int(facts.made_by.stack[row]))
    ]
    largest = max(copies, key=lambda row: int(facts.allocations.nbytes[row]), default=NONE)
    line = str(facts.made_by.line[largest]) if copies else ""
    subject, evidence = (FindingKind.FLOAT32,), HolderEvidence.STRUCTURE
    holder = Holder(HolderKind.AUTOGRAD_NODE, FLOAT32_COPY, line, subject=subject, evidence=evidence)
    rows = facts.allocations.rows_of(copies).tolist()
    return alive_then(FindingKind.FLOAT32, holder, rows, peak)


def _shapes(facts: Facts, storages: set[int]) -> dict[int, str]:
    """Return dtype and shape of some storages."""
    births = facts.capture.tables["births"]
    rows = np.flatnonzero(np.isin(births["storage"], list(storages)))
    return dict(zip(births["storage"][rows].tolist(), facts.strings[births["shape"][rows]], strict=True))


def _is_called_directly(facts: Facts, stack: int) -> bool:
    """Return True if the program's own code called the op, at most through torch.nn.functional."""
    if stack == NONE:
        return False
    for call in facts.call_stacks.frames(stack):
        if facts.call_stacks.owner_of_file[call.file] == CodeOwner.PROGRAM:
            return True
        if not call.file.endswith(_FUNCTIONAL):
            return False
    return False


AVOIDABLE: Final = (
    find_optimizer, find_workspace, find_recompute, find_twice, find_buckets, find_autocast, find_float32,
)  # fmt: skip
"""The rules of this module. They run at the peak."""
