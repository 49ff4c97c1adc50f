"""When a storage was in a role: from when it was seen in it until it was seen in it no more."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from memwatch.analysis.facts.grouped import Grouped
from memwatch.capture.schema import ROLES

if TYPE_CHECKING:
    from memwatch.capture import Capture

_NEVER: Final = 1 << 62


class InRole(Enum):
    """Whether a storage is in a role while an op runs."""

    KNOWN = "known"
    LATER = "later"  # it was seen in it only later
    EARLIER = "earlier"  # it was seen in it before, and at the next look it was in it no more
    ENDED = "ended"


class Stretch(NamedTuple):
    """One stretch of time in a role, in ops.

    Attributes:
        first_op: the first op at which it is known.
        last_op: the last op at which it is known.
        end_op: the op by which it is over.
        row: which row of `roles` begins it.
    """

    first_op: int
    last_op: int
    end_op: int
    row: int


class PastRole(NamedTuple):
    """A role that a storage was in.

    Attributes:
        is_over: True if it was in it no more; False if that is not known.
        end_op: the op by which it was over.
        row: which row of `roles` begins it.
    """

    is_over: bool
    end_op: int
    row: int


class RoleTimes:
    """When each storage was in which role."""

    def __init__(self, capture: Capture) -> None:
        self._begun, ended = capture.tables["roles"], capture.tables["role_ends"]
        self._rows_of_storage = Grouped(self._begun["storage"])
        self._stretches: dict[tuple[int, str], list[Stretch]] = {}
        self._ends: dict[tuple[int, str], list[tuple[int, int]]] = {}
        columns = (ended["storage"].tolist(), ended["role"].tolist(), ended["last_op"].tolist())
        for storage, role, last_op, op in zip(*columns, ended["op"].tolist(), strict=True):
            self._ends.setdefault((storage, ROLES[role]), []).append((op, last_op))

    def _stretches_of(self, storage: int, role: str) -> list[Stretch]:
        """Return when a storage was in a role."""
        key = storage, role
        if key not in self._stretches:
            rows = self._rows_of_storage.within(storage, storage + 1)
            rows = rows[self._begun["role"][rows] == ROLES.index(role)]
            starts = list(zip(self._begun["op"][rows].tolist(), rows.tolist(), strict=True))
            self._stretches[key] = _stretches(role, starts, self._ends.get(key, []))
        return self._stretches[key]

    def at(self, storage: int, role: str, op: int) -> InRole:
        """Return whether a storage is in a role while an op runs, or between it and the next."""
        stretches = self._stretches_of(storage, role)
        begun = [each for each in stretches if each.first_op <= op]
        if not stretches:
            return InRole.KNOWN
        if not begun:
            return InRole.LATER
        if op <= begun[-1].last_op:
            return InRole.KNOWN
        return InRole.EARLIER if op < begun[-1].end_op else InRole.ENDED

    def past_at(self, op: int) -> dict[tuple[int, str], PastRole]:
        """Return, by storage and role, the roles that were over when an op runs, or may have been."""
        found = {}
        for key in self._ends:
            state = self.at(*key, op)
            if state in (InRole.EARLIER, InRole.ENDED):
                last = max(each for each in self._stretches_of(*key) if each.first_op <= op)
                found[key] = PastRole(state is InRole.ENDED, last.end_op, last.row)
        return found


def _stretches(role: str, starts: list[tuple[int, int]], ends: list[tuple[int, int]]) -> list[Stretch]:
    """Pair starts and ends in their order; one piece of memory may have been numbered twice, and begin twice.

    A gradient may have been in flight in the op before the one by which it was seen; the others change between ops.
    """
    found: list[Stretch] = []
    waiting = sorted(ends)
    for start, row in sorted(starts):
        if found and start < found[-1].end_op:
            continue
        while waiting and waiting[0][0] < start:
            waiting.pop(0)
        end_op, last_op = waiting.pop(0) if waiting else (_NEVER, _NEVER)
        first_op = start - (role != "gradient")
        found.append(Stretch(first_op, max(first_op, last_op), end_op, row))
    return found
