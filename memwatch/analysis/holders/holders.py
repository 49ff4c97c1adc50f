"""The holders of a capture's storages at any instant: `rules.py` decides, and two shortcuts serve large captures.

An allocation that no rule explains gets a placeholder, which gives the op and the line that made it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.analysis.facts.allocations import BASELINE, WORKSPACE
from memwatch.analysis.facts.coded import different_rows
from memwatch.analysis.holders.holder import Holder
from memwatch.analysis.holders.in_torch import Awaited, PassedOn, Regions
from memwatch.analysis.holders.rules import (
    NAMING_ROLES,
    Case,
    Sources,
    first_answer,
    holder_in_role,
    unreleased,
    variables,
)
from memwatch.analysis.holders.samples import HolderSamples, are_small, is_small
from memwatch.capture.schema import NONE
from memwatch.kinds.holders import HolderEvidence, HolderKind
from memwatch.words import holders as words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.saved_tensors import SavedTensors
    from memwatch.capture.columns import IntArray


class NotSeen:
    """Makes the placeholders of a capture."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._known: dict[tuple[object, ...], Holder] = {}

    def of_each(self, allocations: IntArray) -> list[Holder]:
        """Return the placeholders of many allocations, which are of few kinds."""
        facts, every = self._facts, self._facts.allocations
        columns = (
            are_small(facts, allocations), every.thread[allocations], every.op[allocations] != NONE,
            every.origin[allocations], facts.made_by.op_name.codes[allocations], facts.made_by.stack[allocations],
        )  # fmt: skip
        first, of_kind = different_rows([column.astype(np.int64) for column in columns])
        kinds = [self.of(allocation) for allocation in allocations[first].tolist()]
        return [kinds[number] for number in of_kind.tolist()]

    def of(self, allocation: int) -> Holder:
        """Return the placeholder for the holder of an allocation without any evidence."""
        facts, allocations = self._facts, self._facts.allocations
        kind, text = HolderKind.NOT_SEEN, words.NOT_SEEN
        thread = str(facts.strings[allocations.thread[allocation]])
        if is_small(facts, allocation):
            kind, text = HolderKind.NOT_LOOKED_FOR, words.TOO_SMALL
        elif thread:
            text = words.MADE_BY_THREAD
        elif int(allocations.op[allocation]) != NONE:
            text = words.NOT_SEEN_MADE_BY
        elif int(allocations.origin[allocation]) == BASELINE:
            text = words.NOT_SEEN_MADE_BEFORE
        op_name, line = str(facts.made_by.op_name[allocation]), str(facts.made_by.line[allocation])
        key = kind, text, op_name, thread, line
        if key not in self._known:  # many allocations have one
            told = words.told_by_op(text, op_name, thread=thread)
            evidence = HolderEvidence.NONE
            self._known[key] = Holder(kind, told, line, subject=(op_name, thread), evidence=evidence)
        return self._known[key]


class Holders:
    """The holders of a capture's storages, at any event of its live curve."""

    def __init__(self, facts: Facts, saved: SavedTensors) -> None:
        samples = HolderSamples(facts)
        passed_on = PassedOn(facts, samples)
        self._facts, self._samples, self._not_seen = facts, samples, NotSeen(facts)
        self._sources = Sources(facts, saved, samples, Regions(facts), Awaited(facts), passed_on)

    def variables(self, allocation: int, op: int) -> list[Holder]:
        """Return the variables that held an allocation while an op ran, the program's own and innermost first."""
        return variables(self._sources, allocation, op)

    def graph_roots(self, allocation: int, op: int) -> list[Holder]:
        """Return the variables whose autograd graph kept an allocation."""
        return self._samples.graph_roots(allocation, op)

    def packs_at(self, allocation: int, op: int) -> list[int]:
        """Return the saved tensors through which autograd held an allocation by the end of an op."""
        packs, saved = self._sources.packs_of(allocation), self._sources.saved_tensors
        return unreleased(packs, saved.saved_op[packs] <= op + 1, saved.released_op[packs], op)

    def describe(self, allocations: Sequence[int], event: int) -> list[Holder]:
        """Return one holder for each allocation, at an event of the live curve."""
        rows, op = np.array(allocations, dtype=np.int64), self._facts.op_at(event)
        untold = self._untold(rows, op)
        found = np.array([*self._of_roles(rows, op), None], dtype=object)[:-1]
        found[untold] = self._not_seen.of_each(rows[untold])
        return [
            self._one(allocation, event) if holder is None else holder
            for allocation, holder in zip(rows.tolist(), found.tolist(), strict=True)
        ]

    def _one(self, allocation: int, event: int) -> Holder:
        return first_answer(Case(self._sources, allocation, event)) or self._not_seen.of(allocation)

    def _of_roles(self, allocations: IntArray, op: int) -> list[Holder | None]:
        """Return the holders that roles name; None for others and for what the running op made. Most have a role."""
        facts, every = self._facts, self._facts.allocations
        roles = facts.categories.role.of(allocations)
        columns = (roles, every.storage[allocations].tolist(), facts.role_names.of(allocations))
        is_asked = (roles.isin(NAMING_ROLES) & ((every.op[allocations] != op) | (op == NONE))).tolist()
        return [
            holder_in_role(facts, role, storage, name, op) if is_wanted else None
            for role, storage, name, is_wanted in zip(*columns, is_asked, strict=True)
        ]

    def _untold(self, allocations: IntArray, op: int) -> NDArray[np.bool_]:
        """Return which allocations have no evidence while an op runs: neither a maker nor a row in a table.

        Beside a small model that trains there may be 100,000 of them.
        """
        facts, every = self._facts, self._facts.allocations
        told: NDArray[np.bool_] = every.op[allocations] != NONE
        told |= facts.categories.role.isin(NAMING_ROLES)[allocations]
        told |= every.origin[allocations] == WORKSPACE
        tables = (
            self._sources.packs_by_storage, self._samples.storages, facts.autocast_copies, facts.recomputes.awaited,
            self._sources.storages_given_to(op),
        )  # fmt: skip
        for storages in tables:
            told |= np.isin(every.storage[allocations], list(storages))
        return ~told
