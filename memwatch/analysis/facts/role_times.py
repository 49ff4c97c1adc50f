"""When a storage was in a role: from when it was seen in it until it was seen in it no more."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.grouped import Grouped
from memwatch.capture.schema import IN_BACKWARD, NONE, ROLES

if TYPE_CHECKING:
    from collections.abc import Collection

    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

_NEVER: Final = 1 << 62


class InRole(Enum):
    """Whether a storage is in a role while an op runs."""

    KNOWN = "known"
    LATER = "later"  # it was seen in it only later
    EARLIER = "earlier"  # it was seen in it before, and at the next look it was in it no more
    BETWEEN = "between"  # it was seen in it before and after, and no look was just then
    UNCONFIRMED = "unconfirmed"  # it was seen in it before, and at the next look it was not alive
    ENDED = "ended"


class Stretch(NamedTuple):
    """One stretch of time in a role, in ops.

    Attributes:
        first_op: the first op at which it is known.
        known_op: the last op by which torch's books tell it, whatever the looks do.
        last_op: the last op at which a look found it.
        end_op: the op by which it is over.
        row: which row of `roles` begins it.
    """

    first_op: int
    known_op: int
    last_op: int
    end_op: int
    row: int


class PastRole(NamedTuple):
    """A role that a storage was in.

    Attributes:
        state: ENDED if it was in it no more; EARLIER, BETWEEN or UNCONFIRMED if that is not known.
        end_op: the op by which it was over.
        row: which row of `roles` begins it.
    """

    state: InRole
    end_op: int
    row: int

    @property
    def is_over(self) -> bool:
        """Whether the storage was in it no more."""
        return self.state is InRole.ENDED


class RoleTimes:
    """When each storage was in which role.

    Args:
        capture: what was recorded.
        death_ns: when each storage died, by its number, -1 if it did not.
    """

    def __init__(self, capture: Capture, death_ns: IntArray) -> None:
        self._begun, ended = capture.tables["roles"], capture.tables["role_ends"]
        self._rows_of_storage = Grouped(self._begun["storage"])
        self._looks, self._phase = _Looks(capture, death_ns), capture.tables["ops"]["phase"]
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
            self._stretches[key] = [
                each._replace(
                    known_op=self._known_until(each, role),
                    last_op=max(each.last_op, self._looks.last_op(storage, role, each)),
                )
                for each in _stretches(role, starts, self._ends.get(key, []))
            ]
        return self._stretches[key]

    def _known_until(self, stretch: Stretch, role: str) -> int:
        """Return the last op at which a role is known but for looks: of a gradient, the op amid which it was seen.

        A gradient that was seen when backward had ended may be taken out before the next op.
        """
        first, phase = stretch.first_op, self._phase
        is_amid = role == "gradient" and first < len(phase) and phase[first] in IN_BACKWARD
        return max(first if is_amid or first == NONE else first - 1, stretch.known_op)

    def at(self, storage: int, role: str, op: int) -> InRole:
        """Return whether a storage is in a role while an op runs, or between it and the next."""
        stretches = self._stretches_of(storage, role)
        begun = [each for each in stretches if each.first_op <= op]
        if not stretches:
            return InRole.KNOWN
        if not begun:
            return InRole.LATER
        stretch, is_looked_at = begun[-1], self._looks.are_at(role)
        if op <= stretch.known_op or (is_looked_at and self._looks.saw(storage, role, stretch, op)):
            return InRole.KNOWN
        if is_looked_at and op < stretch.last_op:
            return InRole.BETWEEN
        if stretch.end_op == _NEVER:
            return InRole.UNCONFIRMED if is_looked_at else InRole.KNOWN
        return InRole.EARLIER if op < stretch.end_op else InRole.ENDED

    def past_at(self, op: int, alive: Collection[int]) -> dict[tuple[int, str], PastRole]:
        """Return, by storage and role, the roles that were over when an op runs, or may have been.

        Args:
            op: the op.
            alive: the storages that are asked about.
        """
        found = {}
        rows = np.isin(self._begun["storage"], list(alive))
        numbers = zip(self._begun["storage"][rows].tolist(), self._begun["role"][rows].tolist(), strict=True)
        for storage, number in dict.fromkeys(numbers):
            key = storage, ROLES[number]
            state = self.at(*key, op)
            if state not in (InRole.KNOWN, InRole.LATER):
                last = max(each for each in self._stretches_of(*key) if each.first_op <= op)
                found[key] = PastRole(state, last.end_op, last.row)
        return found


class _Looks:
    """The looks at roles: when what is alive was in the role that it was known in before."""

    def __init__(self, capture: Capture, death_ns: IntArray) -> None:
        self._table, self._births, self._death_ns = (
            capture.tables["role_looks"],
            capture.tables["births"],
            death_ns,
        )
        self._of_role: dict[str, IntArray] = {}

    def _at(self, role: str) -> IntArray:
        """Return the rows of the looks at a role."""
        if role not in self._of_role:
            self._of_role[role] = np.flatnonzero(self._table["roles"] >> ROLES.index(role) & 1)
        return self._of_role[role]

    def are_at(self, role: str) -> bool:
        """Return True if any look was at a role: torch's own books alone tell of the others, and of what FSDP moves."""
        return len(self._at(role)) > 0

    def saw(self, storage: int, role: str, stretch: Stretch, op: int) -> bool:
        """Return True if a look found a storage in a role while an op ran, in which no reference changes."""
        rows = self._within(storage, role, stretch)
        return bool((self._table["in_op"][rows] & (self._table["op"][rows] == op)).any())

    def last_op(self, storage: int, role: str, stretch: Stretch) -> int:
        """Return how many ops had started when the last look within a stretch found a storage in a role, -1 if none."""
        return int(self._table["op"][self._within(storage, role, stretch)].max(initial=NONE))

    def _within(self, storage: int, role: str, stretch: Stretch) -> IntArray:
        """Return the rows of the looks within a stretch that found a storage in a role."""
        rows, table = self._at(role), self._table
        ops = table["op"][rows]
        found = (ops >= stretch.first_op) & (ops < stretch.end_op)
        found &= table["least_bytes"][rows] <= self._births["nbytes"][storage]
        if self._death_ns[storage] != NONE:
            found &= table["time_ns"][rows] <= self._death_ns[storage]
        return rows[found]


def _stretches(role: str, starts: list[tuple[int, int]], ends: list[tuple[int, int]]) -> list[Stretch]:
    """Pair starts and ends in their order; what is seen again in its role was in it until then.

    A gradient may have been in flight in the op before the one by which it was seen; the others change between ops.
    """
    found: list[Stretch] = []
    waiting = sorted(ends)
    for start, row in sorted(starts):
        if found and start < found[-1].end_op:
            found[-1] = found[-1]._replace(last_op=max(found[-1].last_op, start))
            continue
        while waiting and waiting[0][0] < start:
            waiting.pop(0)
        end_op, known_op = waiting.pop(0) if waiting else (_NEVER, NONE)
        first_op = start if start or role == "gradient" else NONE  # before the first op none ran
        found.append(Stretch(first_op, known_op, NONE, end_op, row))
    return found
