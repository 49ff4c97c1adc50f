"""Candidates: pieces of memory that one holder keeps for one reason."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memwatch.analysis.holders import HolderKind
from memwatch.analysis.holders.holder import of_any_item

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.analysis.holders import Holder, HolderKey
    from memwatch.capture.packed import IntArray
    from memwatch.kinds.findings import FindingKind


@dataclass(frozen=True)
class Candidate:
    """The result of a rule. It becomes a finding if the peak is lower without its bytes."""

    kind: FindingKind
    holder: Holder
    others: tuple[Holder, ...]  # who else holds the first of the allocations
    allocations: list[int]
    nbytes: int  # most of them at one event
    spares: IntArray | None = field(default=None, repr=False, compare=False)
    """Bytes per event that would not be live, where they are not those of the allocations' own lives."""
    spans: tuple[tuple[int, int, int], ...] = ()
    """Allocation, first event and the event after the last, where it would not be live; empty if `kind` tells."""

    def joined(self, other: Candidate) -> Candidate:
        """Return this candidate with the allocations of another one, found at another event."""
        allocations = self.allocations + other.allocations
        nbytes, spans = max(self.nbytes, other.nbytes), (*self.spans, *other.spans)
        return dataclasses.replace(self, allocations=allocations, nbytes=nbytes, spans=spans)

    def without(self, taken: Container[int]) -> Candidate:
        """Return this candidate without some allocations."""
        return dataclasses.replace(self, allocations=[row for row in self.allocations if row not in taken])


def by_holder(
    kind: FindingKind, claims: Iterable[tuple[int, list[Holder]]], allocations: Allocations
) -> list[Candidate]:
    """Group claims by the first holder of each; items of one list or dictionary count as one holder.

    Args:
        kind: the kind of all of them.
        claims: an allocation and its holders, the one to name first.
        allocations: every piece of memory.
    """
    groups: dict[HolderKey, list[tuple[int, list[Holder]]]] = {}
    for claim in claims:
        groups.setdefault(claim[1][0].key_of_items, []).append(claim)
    return [_candidate(kind, group, allocations) for group in groups.values()]


def as_one(
    kind: FindingKind, claims: Iterable[tuple[int, list[Holder]]], allocations: Allocations
) -> list[Candidate]:
    """Return one candidate for all claims, named by the first holder that is a variable and no autograd node."""
    group = list(claims)
    if not group:
        return []
    candidate = _candidate(kind, group, allocations)
    variables = (holders[0] for _, holders in group if holders[0].kind is not HolderKind.AUTOGRAD_NODE)
    return [dataclasses.replace(candidate, holder=next(variables, candidate.holder))]


def _candidate(
    kind: FindingKind, group: list[tuple[int, list[Holder]]], allocations: Allocations
) -> Candidate:
    _, (holder, *others) = min(group, key=lambda claim: not claim[1][0].is_likely)
    held = [allocation for allocation, _ in group]
    if len({holders[0].key for _, holders in group}) > 1:
        holder = of_any_item(holder)
    return Candidate(kind, holder, tuple(others), held, int(allocations.nbytes[held].sum()))
