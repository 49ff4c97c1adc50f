"""A moment: the facts at one event of the live curve, which the rules examine.

The idle times of gradients are computed for all gradients at once, because a long run zeroes each of them in every
iteration. A gradient is idle from the end of the optimizer's step until an op of the next backward adds to it. In
between, an op fills it with zeros.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.biographies import DRAG, LAG, USE, VOID
from memwatch.analysis.holders import Holder, HolderEvidence, HolderKind, Holders
from memwatch.analysis.observer import unrecorded_code_ran_while_idle
from memwatch.analysis.saved_tensors import SavedTensorOutcome, SavedTensorOutcomes, SavedTensors
from memwatch.capture.schema import ACCESSES, IN_BACKWARD, NONE, OPTIMIZER, PHASES
from memwatch.kinds.roles import KEPT_ON_PURPOSE

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.findings.loops import Loops
    from memwatch.capture.columns import IntArray
    from memwatch.kinds.findings import FindingKind

_ZEROING: Final = ("aten.zero_", "aten._foreach_zero_")


class Spans(NamedTuple):
    """Idle times, in the order of the storages: the events at which each begins and ends, and the op that zeroes."""

    storage: IntArray
    start: IntArray
    end: IntArray
    zero_op: IntArray


class IdleGradients:
    """The idle times of all gradients of a capture."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def of(self, storages: Iterable[int]) -> Spans:
        """Return the idle times of some storages."""
        chosen = np.isin(self._spans.storage, list(storages))
        return Spans(*(column[chosen] for column in self._spans))

    @cached_property
    def _spans(self) -> Spans:
        """The idle times of gradients that an op fills with zeros between two uses."""
        storage, op = self._uses()
        of_ops = self._facts.capture.tables["ops"]["name"]
        names = np.unique(of_ops)  # without the inverse, which takes 16 bytes for each of millions of ops
        texts = self._facts.capture.text(names)
        zeroing = [text.startswith(_ZEROING) for text in texts]
        at = np.flatnonzero(np.isin(of_ops[op], names[np.array(zeroing, dtype=bool)]))
        at = at[(at > 0) & (at < len(op) - 1)]
        at = at[(storage[at - 1] == storage[at]) & (storage[at + 1] == storage[at])]
        return Spans(storage[at], *self._events(op[at - 1], op[at], op[at + 1]), op[at])

    def _uses(self) -> tuple[IntArray, IntArray]:
        """Return the storages of gradients and the ops that use them, sorted by storage and op, each pair once."""
        facts, uses = self._facts, self._facts.capture.tables["uses"]
        is_gradient = facts.categories.category.isin(["gradient"])
        storages = facts.allocations.storage[is_gradient]
        is_wanted = np.zeros(len(is_gradient) + 1, dtype=bool)  # the last entry is for -1, "no storage"
        is_wanted[storages[storages != NONE]] = True
        chosen = np.flatnonzero(is_wanted[uses["storage"]] & (uses["access"] != ACCESSES.index("output")))
        storage, op = uses["storage"][chosen], uses["op"][chosen]
        order = np.lexsort((op, storage))
        storage, op = storage[order], op[order]
        is_new = np.ones(len(op), dtype=bool)
        is_new[1:] = (np.diff(storage) != 0) | (np.diff(op) != 0)
        return storage[is_new], op[is_new]

    def _events(self, before: IntArray, zeroing: IntArray, after: IntArray) -> tuple[IntArray, IntArray]:
        """Return the events between which gradients are idle.

        The op that adds to a gradient reads a new gradient, which dies after the op. Without the old gradient, the new
        one would stay from here on. So nothing is spared after this op.

        Args:
            before: the last op that uses each gradient before it is filled with zeros.
            zeroing: the op that fills it with zeros.
            after: the op that adds to it.
        """
        ops, times_ns = self._facts.capture.tables["ops"], self._facts.curve.time_ns
        last_op = len(ops["op"]) - 1
        outside = np.append(np.flatnonzero(ops["phase"] != OPTIMIZER), last_op + 1)
        stepped = outside[np.searchsorted(outside, before + 1)]  # the first op that is not the optimizer's
        start_op = np.where(stepped <= zeroing, stepped, before + 1)
        start = np.searchsorted(times_ns, ops["start_ns"][start_op], side="left")
        end = np.searchsorted(times_ns, ops["start_ns"][np.minimum(after + 1, last_op)], side="left")
        return start, np.maximum(start, end)


class Evidence(NamedTuple):
    """The facts that all moments of one search share."""

    facts: Facts
    holders: Holders
    saved: SavedTensors
    outcomes: SavedTensorOutcomes
    loops: Loops
    idle_gradients: IdleGradients


_OF_MODELS: Final = ("parameter", "buffer", "gradient", "optimizer state")
_FEWEST_MODELS: Final = 3
"""A guess: two may be the best model so far and the one before it."""


class EarlierModels(NamedTuple):
    """Models that earlier passes trained: their number, the op that made the first, and their idle allocations."""

    number: int
    first_op: int
    rows: list[int]


class Moment:
    """One event: the living allocations, the idle ones, and their holders.

    Args:
        evidence: the facts about the whole capture.
        event: row of the timeline.
        taken: allocations that earlier moments explained; they are left out.
    """

    def __init__(self, evidence: Evidence, event: int, taken: Container[int] = ()) -> None:
        self.evidence, self.facts = evidence, evidence.facts
        self.event, self.op = event, evidence.facts.op_at(event)
        self._taken = taken

    @cached_property
    def alive(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which allocations are alive."""
        return self.facts.alive_at(self.event)

    @cached_property
    def _category(self) -> Sequence[str]:
        """The purpose of every allocation."""
        return self.facts.categories_at(self.event).category

    @cached_property
    def _idle(self) -> list[tuple[int, int]]:
        """The allocations, with their phase, that no op uses now. Memory from before the block is left out.

        The phases are those so far: `search` decides what they show of memory that was alive when the recording was cut
        off.
        """
        allocations = self.facts.allocations
        rows = np.flatnonzero(self.alive & (allocations.storage != NONE) & (allocations.birth_event > 0))
        phases = self.facts.biographies.phase_at(self.event, rows, so_far=True)
        idle = zip(rows.tolist(), phases.tolist(), strict=True)
        return [(row, phase) for row, phase in idle if phase != USE and row not in self._taken]

    def alive_of(self, category: str) -> list[int]:
        """Return the allocations of one category that are alive, used or not."""
        categories = self._category
        rows = np.flatnonzero(self.alive).tolist()
        return [row for row in rows if categories[row] == category and row not in self._taken]

    def unused_since_entry(self, category: str) -> list[int]:
        """Return the allocations of one category that were alive at entry and that the block frees without another use.

        An allocation that outlives the block does not count, because the program may use it afterwards.
        """
        allocations, categories = self.facts.allocations, self._category
        is_freed = (allocations.birth_event == NONE) & (allocations.death_event != NONE)
        rows = np.flatnonzero(self.alive & is_freed & (allocations.storage != NONE))
        phases = self.facts.biographies.phase_at(self.event, rows)
        unused = rows[(phases == VOID) | (phases == DRAG)].tolist()
        return [row for row in unused if categories[row] == category and row not in self._taken]

    def idle(self, phase: int, category: str) -> list[int]:
        """Return the allocations of one category that are in one phase of their lives."""
        categories = self._category
        return [row for row, found in self._idle if found == phase and categories[row] == category]

    @cached_property
    def _droppable(self) -> list[tuple[int, int, list[int]]]:
        """Idle allocations that are not kept on purpose: allocation, phase, and the saved tensors that lie in it."""
        categories, packs_at = self._category, self.evidence.holders.packs_at
        storages, cached = self.facts.allocations.storage, self.facts.autocast_copies
        return [
            (row, phase, packs_at(row, self.op))
            for row, phase in self._idle
            if categories[row] not in KEPT_ON_PURPOSE and int(storages[row]) not in cached
        ]

    @cached_property
    def _in_variables(self) -> list[tuple[int, int, list[Holder]]]:
        """The memory that variables hold and autograd does not: allocation, phase, and the variables.

        Variables of torch and of installed packages count only if the program has no code of its own, as when a
        package's own command runs. Memory shared with numpy is left out, because numpy's reads are not recorded.
        """
        evidence = self.evidence
        own = self.facts.call_stacks.has_program_code
        found = [
            (row, phase, [each for each in evidence.holders.variables(row, self.op) if each.may_be_cut])
            for row, phase, packs in self._droppable
            if not packs
        ]
        known = [row for row in found if row[2] and not (own and row[2][0].foreign)]
        return [row for row in known if not any(holder.is_of_array for holder in row[2])]

    def held_by_variables(self, phase: int) -> Iterator[tuple[int, list[Holder]]]:
        """Yield the allocations in one phase that variables hold, each with its variables."""
        return ((row, variables) for row, found, variables in self._in_variables if found == phase)

    @cached_property
    def earlier_models(self) -> EarlierModels:
        """The models that earlier passes trained, or parts of them, with their optimizers; nothing uses them again.

        A search for good settings, or a cross-validation, makes a model in each pass. A program that learns one task
        after the other makes a new head. A model is of an earlier pass if its last use comes before the same
        calls make the next one. A backward must have run for it: the unused layers of one model do not count.
        """
        facts, none = self.facts, EarlierModels(0, NONE, [])
        made, last = facts.allocations.op, facts.use_bounds.last_op
        parameters = np.array(self.alive_of("parameter"), dtype=np.int64)
        parameters = parameters[made[parameters] != NONE]
        starts = self._starts_of_passes(parameters)
        if len(starts) <= _FEWEST_MODELS:
            return none
        ends = np.append(starts[1:], self.op)
        phases = facts.capture.tables["ops"]["phase"]
        earlier = [
            (start, end)
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
            if np.isin(phases[start:end], IN_BACKWARD).any()
        ][:-1]
        if len(earlier) < _FEWEST_MODELS:
            return none
        rows = np.array([row for category in _OF_MODELS for row in self.idle(DRAG, category)], dtype=np.int64)
        is_of_earlier = np.zeros(len(rows), dtype=bool)
        for start, end in earlier:
            is_of_earlier |= (made[rows] >= start) & (made[rows] < end) & (last[rows] < end)
        found = np.sort(rows[is_of_earlier]).tolist()
        idle = [row for row in found if not unrecorded_code_ran_while_idle(facts, row)]
        return EarlierModels(len(earlier), earlier[0][0], idle)

    def _starts_of_passes(self, parameters: IntArray) -> IntArray:
        """Return the op of each pass that makes its first parameter.

        A pass begins where a line makes a parameter after the last use of all parameters that it made before. Lines may
        differ in their passes: the line with the most passes counts.

        Args:
            parameters: the parameters that are alive.
        """
        made, last = self.facts.allocations.op, self.facts.use_bounds.last_op
        stacks = self.facts.made_by.stack[parameters]
        found: IntArray = np.zeros(0, dtype=np.int64)
        for stack in np.unique(stacks[stacks != NONE]).tolist():
            rows = parameters[stacks == stack]
            rows = rows[np.argsort(made[rows], kind="stable")]
            used_until = np.maximum.accumulate(np.maximum(last[rows], made[rows]))
            starts = made[rows[np.append(0, np.flatnonzero(made[rows][1:] > used_until[:-1]) + 1)]]
            if len(starts) > len(found) or (len(starts) == len(found) and starts[0] < found[0]):
                found = starts
        return found

    def is_of_backward(self, allocation: int) -> bool:
        """Return True for the result of an op of a backward."""
        made = int(self.facts.allocations.op[allocation])
        return made != NONE and PHASES[self.facts.op_phase(made)] == "backward"

    def is_output(self, allocation: int) -> bool:
        """Return True in backward for a tensor that a model's forward made, and that forward alone used."""
        facts, ops = self.facts, self.facts.capture.tables["ops"]
        made, last = int(facts.allocations.op[allocation]), int(facts.use_bounds.last_op[allocation])
        if min(self.op, made, last) < 0 or PHASES[ops["phase"][self.op]] != "backward":
            return False
        in_forward = all(PHASES[ops["phase"][op]] == "forward" for op in (made, last))
        return in_forward and last < self.op and int(ops["module"][made]) != NONE

    def is_in_variable_of(self, allocation: int, roots: Sequence[Holder]) -> bool:
        """Return True if the variable or the container whose graph keeps an allocation also has the tensor itself."""
        subjects = {root.key_of_items.subject for root in roots}  # the kinds differ: one of them is a graph
        found = self.evidence.holders.variables(allocation, self.op)
        return any(holder.key_of_items.subject in subjects for holder in found)

    def is_freed_without_retain_graph(self, allocation: int) -> bool:
        """Return True if the last backward that reads memory would free it without `retain_graph=True`.

        It would not if a variable holds the memory too, or if the backward reads something that a later one needs.
        """
        evidence = self.evidence
        return not evidence.holders.variables(allocation, self.op) and all(
            evidence.outcomes.is_freed_without_retain_graph(pack)
            for pack in evidence.holders.packs_at(allocation, self.op)
        )

    def last_backward_of(self, allocation: int) -> int:
        """Return the stack of the call of the last backward that reads memory which autograd holds."""
        evidence = self.evidence
        return max(map(evidence.outcomes.last_backward_of, evidence.holders.packs_at(allocation, self.op)))

    @cached_property
    def held_by_autograd(self) -> list[tuple[int, set[SavedTensorOutcome]]]:
        """The allocations that only autograd keeps though no backward needs them, with the fate of each.

        If the recording was cut off, the graphs of its last iteration are left out: their backward was still to come.
        """
        found, facts = [], self.facts
        for row, phase, packs in self._droppable:
            if not (facts.ends_known[row] or facts.is_of_ended_iteration(row)):
                continue
            outcomes = {self.evidence.outcomes.at(pack, self.op) for pack in packs}
            if packs and phase != LAG and SavedTensorOutcome.NEEDED not in outcomes:
                found.append((row, outcomes))
        return found

    def held_by_graphs(
        self, kind: FindingKind, words: str, *, outlived: bool
    ) -> Iterator[tuple[int, list[Holder]]]:
        """Yield the allocations that only autograd keeps, each with the program's variables that hold the graph.

        Args:
            kind: the kind of finding that this is for.
            words: the text for a graph that no variable of the program leads to.
            outlived: whether the backward that needs it has run, or never runs.
        """
        line = self.facts.made_by.line
        for row, outcomes in self.held_by_autograd:
            if (SavedTensorOutcome.OUTLIVED in outcomes) is outlived:
                roots = self.evidence.holders.graph_roots(row, self.op)
                evidence = HolderEvidence.STRUCTURE
                nameless = Holder(
                    HolderKind.AUTOGRAD_NODE, words, str(line[row]), subject=(kind,), evidence=evidence
                )
                yield row, [root for root in roots if not root.foreign] or [nameless]
