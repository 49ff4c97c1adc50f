"""The times at which each storage had a role, such as parameter, gradient or optimizer state.

The recorder notes when it finds a storage in a role (table `roles`), and when it finds the storage without the role
(table `role_ends`). In between, samples show that the storage still has the role (table `role_looks`).

All times are numbers of ops. The time 7 lasts from the start of op 7 to the start of op 8. If the recorder notes
something between two ops, the note has the number of the second one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.coded import Grouped
from memwatch.capture.schema import BACKWARD, IN_BACKWARD, NONE, OPTIMIZER
from memwatch.kinds.roles import ROLES
from memwatch.own_code import CodeOwner

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.analysis.facts.places import CallStacks
    from memwatch.capture import Capture
    from memwatch.capture.columns import IntArray

_NEVER: Final = 1 << 62  # an op after all others


class InRole(Enum):
    """Whether a storage is in a role while an op runs."""

    KNOWN = "known"
    LATER = "later"  # it was first found in the role after this op
    EARLIER = "earlier"  # it was found in the role before this op, and without it after this op
    BETWEEN = "between"  # it was found in the role before and after this op, and no sample examined it during this op
    # It was found in the role before this op. Later samples could not tell: it was dead, or they did not examine it.
    UNCONFIRMED = "unconfirmed"
    ENDED = "ended"  # before this op it was found without the role


_NOT_PAST: Final = (InRole.KNOWN, InRole.LATER)


class Stretch(NamedTuple):
    """A time during which a storage has a role without a break.

    Attributes:
        first_op: the op at which the storage was first found in the role; -1 if it had the role from the start.
        known_op: the last op at which the role is certain without any sample; before `first_op` if it never is.
        last_op: the op at which a sample last found the storage in the role; -1 if no sample did.
        end_op: the first op after the storage was found without the role; `_NEVER` if it was not.
        row: the row of `roles` that begins the stretch.
    """

    first_op: int
    known_op: int
    last_op: int
    end_op: int
    row: int


class PastRole(NamedTuple):
    """A role that a storage had.

    Attributes:
        state: ENDED if the storage had left the role; EARLIER, BETWEEN or UNCONFIRMED if that is unknown.
        end_op: the first op after the storage was found without the role.
        row: the row of `roles` that begins its stretch.
    """

    state: InRole
    end_op: int
    row: int

    @property
    def is_over(self) -> bool:
        """Whether the storage had left the role."""
        return self.state is InRole.ENDED


class RoleTimes:
    """The times at which each storage had each role.

    Args:
        capture: the recorded tables.
        allocations: all allocated memory. Row n is the storage with the number n; other memory follows the storages.
        call_stacks: the calls that ran each op.
    """

    def __init__(self, capture: Capture, allocations: Allocations, call_stacks: CallStacks) -> None:
        self._capture, self._call_stacks = capture, call_stacks
        self._begun, ended = capture.tables["roles"], capture.tables["role_ends"]
        self._rows_of_storage = Grouped(self._begun["storage"])
        self._made, self._phase = allocations.op, capture.tables["ops"]["phase"]
        self._samples = _Samples(capture, allocations, self._begun_op)
        self._stretches: dict[tuple[int, str], list[Stretch]] = {}
        self._cached_op, self._cached = NONE - 1, dict[tuple[int, str], InRole]()
        self._ends: dict[tuple[int, str], list[tuple[int, int]]] = {}
        columns = (ended["storage"].tolist(), ended["role"].tolist(), ended["last_op"].tolist())
        for storage, role, last_op, op in zip(*columns, ended["op"].tolist(), strict=True):
            self._ends.setdefault((storage, ROLES[role]), []).append((op, last_op))

    @cached_property
    def _begun_op(self) -> IntArray:
        """For each row of `roles`, the op at which the role began.

        The recorder notes an optimizer's state when a step ends. torch's optimizers make the state earlier in that
        step: `_init_group` makes each tensor and stores it in the state at once. So if `_init_group` made the tensor in
        that step, the role begins at the op after the tensor's birth.
        """
        storage, begun = self._begun["storage"], self._begun["op"].astype(np.int64)
        made = np.asarray(self._made[storage], dtype=np.int64)
        is_state = (self._begun["role"] == ROLES.index("optimizer state")) & (made != NONE) & (made < begun)
        rows = np.flatnonzero(is_state)
        stacks = self._capture.tables["ops"]["stack"][made[rows]]
        fills = np.array([self._fills_state(each) for each in np.unique(stacks).tolist()], dtype=bool)
        steps = self._capture.tables["steps"]["end_op"]
        # no other step ended between the birth and the note
        is_same_step = np.searchsorted(np.sort(steps), made[rows], side="right") == np.searchsorted(
            np.sort(steps), begun[rows], side="left"
        )
        rows = rows[fills[np.searchsorted(np.unique(stacks), stacks)] & is_same_step]
        begun[rows] = made[rows] + 1
        return begun

    def _fills_state(self, stack: int) -> bool:
        """Return True if `_init_group` of one of torch's optimizers called the op."""
        if not self._is_of_optimizer(stack):
            return False
        return self._call_stacks.frames(stack)[0].function.rpartition(".")[2] == "_init_group"

    def _stretches_of(self, storage: int, role: str) -> list[Stretch]:
        """Return the stretches of a storage in a role, in order."""
        key = storage, role
        if key not in self._stretches:
            rows = self._rows_of_storage.within(storage, storage + 1)
            rows = rows[self._begun["role"][rows] == ROLES.index(role)]
            self._learn(key, list(zip(self._begun_op[rows].tolist(), rows.tolist(), strict=True)))
        return self._stretches[key]

    def _learn(self, key: tuple[int, str], starts: list[tuple[int, int]]) -> None:
        """Compute the stretches of a storage in a role, and cache them.

        Args:
            key: the storage and the role.
            starts: the rows of `roles` for this storage and role, each as the op at which the role began, and the row.
        """
        storage, role = key
        self._stretches[key] = [
            each._replace(
                known_op=self._known_until(each, role),
                last_op=max(each.last_op, self._samples.last_op(storage, role, each)),
            )
            for each in _stretches(role, starts, self._ends.get(key, []))
        ]

    def _known_until(self, stretch: Stretch, role: str) -> int:
        """Return `Stretch.known_op`, the last op at which the role is certain without any sample.

        A gradient that was found during an op of backward has the role during that op. Any other role was found before
        the op `first_op` started, and the program may have ended the role before that start. Only torch's own records
        make more ops certain.
        """
        first, phase = stretch.first_op, self._phase
        is_in_backward = role == "gradient" and first < len(phase) and phase[first] in IN_BACKWARD
        return max(first if is_in_backward or first == NONE else first - 1, stretch.known_op)

    def at(self, storage: int, role: str, op: int) -> InRole:
        """Return whether a storage is in a role from the start of an op to the start of the next one."""
        # The cache has the answers for one op: at a peak, the categories and the holders of a storage both need them.
        if op != self._cached_op:
            self._cached_op = op
            self._cached.clear()
        key = storage, role
        found = self._cached.get(key)
        if found is None:
            found = self._cached[key] = self._is_in(storage, role, op)
        return found

    def _is_in(self, storage: int, role: str, op: int) -> InRole:
        stretches = self._stretches_of(storage, role)
        begun = [each for each in stretches if each.first_op <= op]
        if not stretches:  # the role does not come from the table `roles`
            return InRole.KNOWN
        if not begun:
            return InRole.LATER
        stretch, is_sampled = begun[-1], self._samples.exist_for(role)
        if op <= stretch.known_op or (is_sampled and self._samples.saw(storage, role, stretch, op)):
            return InRole.KNOWN
        is_seen_later = is_sampled and op < stretch.last_op
        # A sample during another op of `_ops_of_torch` counts for this op too. If torch itself may have ended the role
        # in between, it counts only if a later sample found the role again.
        counts_for_run = is_seen_later or (is_sampled and not self._may_be_replaced(role, op))
        if counts_for_run and self._samples.saw_within(storage, role, stretch, self._ops_of_torch(op)):
            return InRole.KNOWN
        if is_seen_later:
            return InRole.BETWEEN
        if stretch.end_op == _NEVER:
            # if no sample examines the role, torch's own records decide, and they show no end
            return InRole.UNCONFIRMED if is_sampled else InRole.KNOWN
        return InRole.EARLIER if op < stretch.end_op else InRole.ENDED

    def _may_be_replaced(self, role: str, op: int) -> bool:
        """Return True if torch itself may end a role while an op runs: a backward may replace a gradient."""
        is_in_backward = 0 <= op < len(self._phase) and self._phase[op] == BACKWARD
        return bool(role == "gradient" and is_in_backward)

    def _ops_of_torch(self, op: int) -> range:
        """Return the longest range of ops around an op during which only torch's own code ran.

        The range is one step of torch's optimizers, or the part of a backward between two hooks or checkpoints that run
        ops. Elsewhere it is the op alone. Only code of the program changes the references to a storage. So a sample
        during one op of the range shows the role of a storage for the whole range.
        """
        if not 0 <= op < len(self._run_of_torch):
            return range(op, op + 1)
        run = self._run_of_torch[op]
        first, last = (np.searchsorted(self._run_of_torch, run, side=side) for side in ("left", "right"))
        return range(int(first), int(last))

    @cached_property
    def _run_of_torch(self) -> IntArray:
        """For each op, the number of its run: a new run starts if the program's code may have run since the last op."""
        ops, steps = self._capture.tables["ops"], self._capture.tables["steps"]
        stack, phase = ops["stack"], ops["phase"]
        in_backward = phase == BACKWARD
        stacks, of_op = np.unique(stack, return_inverse=True)
        is_of_optimizer = np.array([self._is_of_optimizer(each) for each in stacks.tolist()], dtype=bool)
        in_step = (phase == OPTIMIZER) & is_of_optimizer[of_op]
        # an op of a hook or of a checkpoint has another call stack
        goes_on = in_backward[1:] & in_backward[:-1] & (stack[1:] == stack[:-1]) & (stack[1:] != NONE)
        goes_on |= in_step[1:] & in_step[:-1]
        starts = np.ones(len(stack), dtype=bool)
        starts[1:] = ~goes_on
        bounds = np.concatenate([steps["op"], steps["end_op"]])
        starts[bounds[bounds < len(starts)]] = True
        return np.cumsum(starts)

    def _is_of_optimizer(self, stack: int) -> bool:
        """Return True if code of torch's optimizers called the op."""
        frames = [] if stack == NONE else self._call_stacks.frames(stack)
        is_of_torch = bool(frames) and self._call_stacks.owners(stack)[0] is CodeOwner.TORCH
        return is_of_torch and "torch/optim/" in frames[0].file.replace("\\", "/")

    def past_at(self, op: int, alive: Collection[int]) -> dict[tuple[int, str], PastRole]:
        """Return, by storage and role, the roles that were over when an op ran, or may have been over.

        Args:
            op: the op.
            alive: the storages of interest.
        """
        rows = np.flatnonzero(np.isin(self._begun["storage"], list(alive)))
        is_lasting = self._are_lasting(rows)
        found = self._lasting_past_at(op, rows[is_lasting])
        rows = rows[~is_lasting]
        starts: dict[tuple[int, str], list[tuple[int, int]]] = {}
        columns = [
            each[rows].tolist() for each in (self._begun["storage"], self._begun["role"], self._begun_op)
        ]
        for storage, number, start, row in zip(*columns, rows.tolist(), strict=True):
            starts.setdefault((storage, ROLES[number]), []).append((start, row))
        for key, begun in starts.items():
            if key not in self._stretches:
                self._learn(key, begun)
            state = self.at(*key, op)
            if state not in _NOT_PAST:
                last = max(each for each in self._stretches[key] if each.first_op <= op)
                found[key] = PastRole(state, last.end_op, last.row)
        return found

    def _are_lasting(self, rows: IntArray) -> NDArray[np.bool_]:
        """Return for each row whether the storage has one stretch in this role, and no end of it was recorded.

        Most parameters have such a row. A large model has many, so `_lasting_past_at` handles all of them at once.
        """
        keys = self._begun["storage"][rows].astype(np.int64) * len(ROLES) + self._begun["role"][rows]
        ended = [storage * len(ROLES) + ROLES.index(role) for storage, role in self._ends]
        different, number_of, counts = np.unique(keys, return_inverse=True, return_counts=True)
        is_lasting: NDArray[np.bool_] = ((counts == 1) & ~np.isin(different, ended))[number_of]
        return is_lasting

    def _lasting_past_at(self, op: int, rows: IntArray) -> dict[tuple[int, str], PastRole]:
        """Return the result of `past_at` for lasting rows, see `_are_lasting`. Fill the cache of `at` too."""
        found: dict[tuple[int, str], PastRole] = {}
        if op != self._cached_op:
            self._cached_op = op
            self._cached.clear()
        for number in np.unique(self._begun["role"][rows]).tolist():
            of_role = rows[self._begun["role"][rows] == number]
            states = self._lasting_states(ROLES[number], of_role, op)
            storages = self._begun["storage"][of_role].tolist()
            for storage, state, row in zip(storages, states, of_role.tolist(), strict=True):
                key = storage, ROLES[number]
                self._cached[key] = state
                if state not in _NOT_PAST:
                    found[key] = PastRole(state, _NEVER, row)
        return found

    def _lasting_states(self, role: str, rows: IntArray, op: int) -> list[InRole]:
        """Return the result of `_is_in` for each lasting row, see `_are_lasting`."""
        first_ops, phase = self._begun_op[rows].astype(np.int64), self._phase
        is_in_backward = np.zeros(len(rows), dtype=bool)
        if role == "gradient":
            is_run = first_ops < len(phase)
            is_in_backward[is_run] = np.isin(phase[first_ops[is_run]], IN_BACKWARD)
        else:
            first_ops[first_ops == 0] = NONE  # as in `_stretches`
        is_known = np.maximum(first_ops - ~is_in_backward, NONE) >= op  # as in `_known_until`
        is_between, rest = np.zeros(len(rows), dtype=bool), InRole.KNOWN
        if self._samples.exist_for(role):
            storages = self._begun["storage"][rows]
            is_known |= self._samples.saw_each(role, storages, rows, op)
            is_between = self._samples.saw_each_later(role, storages, rows, op)
            is_seen = self._samples.saw_each_within(role, storages, rows, self._ops_of_torch(op))
            is_known |= is_seen & is_between if self._may_be_replaced(role, op) else is_seen
            rest = InRole.UNCONFIRMED
        states = np.full(len(rows), rest, dtype=object)
        states[is_between], states[is_known] = InRole.BETWEEN, InRole.KNOWN
        states[first_ops > op] = InRole.LATER
        found: list[InRole] = states.tolist()
        return found


class _Samples:
    """The samples that compare the known roles of living storages with their present ones."""

    def __init__(self, capture: Capture, allocations: Allocations, begun_op: IntArray) -> None:
        self._table, self._death_ns = capture.tables["role_looks"], allocations.death_ns
        # bytes of the storage of each row of `roles`; read once, because a long run has many births
        self._nbytes = capture.tables["births"]["nbytes"][capture.tables["roles"]["storage"]]
        self._begun_op = begun_op.__getitem__
        self._of_role: dict[str, _SamplesOfRole] = {}

    def _samples_of(self, role: str) -> _SamplesOfRole:
        if role not in self._of_role:
            table = self._table
            rows = np.flatnonzero(table["roles"] >> ROLES.index(role) & 1)
            rows = rows[np.argsort(table["op"][rows], kind="stable")]
            # lists, because reading single numbers of an array is slow, and each storage reads a few
            self._of_role[role] = _SamplesOfRole(
                *(table[name][rows].tolist() for name in _SamplesOfRole._fields)
            )
        return self._of_role[role]

    def exist_for(self, role: str) -> bool:
        """Return True if any sample examined a role. Other roles are known only from torch's own records."""
        return bool(self._samples_of(role).op)

    def saw(self, storage: int, role: str, stretch: Stretch, op: int) -> bool:
        """Return True if a sample found a storage in a role while an op ran.

        The sample counts for the whole op, because references do not change during an op.
        """
        if not stretch.first_op <= op < stretch.end_op:
            return False
        samples = self._samples_of(role)
        rows = range(bisect_left(samples.op, op), bisect_right(samples.op, op))
        return any(samples.in_op[row] and self._found(samples, row, storage, stretch) for row in rows)

    def last_op(self, storage: int, role: str, stretch: Stretch) -> int:
        """Return the op at which a sample within a stretch last found the storage in the role; -1 if no sample did."""
        samples = self._samples_of(role)
        rows = range(bisect_left(samples.op, stretch.first_op), bisect_left(samples.op, stretch.end_op))
        return next(
            (samples.op[row] for row in reversed(rows) if self._found(samples, row, storage, stretch)), NONE
        )

    def saw_each(self, role: str, storages: IntArray, rows: IntArray, op: int) -> NDArray[np.bool_]:
        """Return the result of `saw` for each storage. `rows` are the lasting rows of these storages in `roles`."""
        samples = self._samples_of(role)
        within = range(bisect_left(samples.op, op), bisect_right(samples.op, op))
        return self._found_by_any(samples, [row for row in within if samples.in_op[row]], storages, rows)

    def saw_within(self, storage: int, role: str, stretch: Stretch, ops: range) -> bool:
        """Return True if a sample found a storage in a role while one of the ops ran."""
        samples = self._samples_of(role)
        rows = range(bisect_left(samples.op, ops.start), bisect_left(samples.op, ops.stop))
        return any(
            samples.in_op[row]
            and stretch.first_op <= samples.op[row] < stretch.end_op
            and self._found(samples, row, storage, stretch)
            for row in rows
        )

    def saw_each_within(self, role: str, storages: IntArray, rows: IntArray, ops: range) -> NDArray[np.bool_]:
        """Return the result of `saw_within` for each storage. `rows` are the lasting rows of these storages."""
        samples, first_op = self._samples_of(role), self._begun_op(rows)
        within = range(bisect_left(samples.op, ops.start), bisect_left(samples.op, ops.stop))
        found = np.zeros(len(rows), dtype=bool)
        for row in within:
            if samples.in_op[row]:
                found |= (first_op <= samples.op[row]) & self._found_by_any(samples, [row], storages, rows)
        return found

    def saw_each_later(self, role: str, storages: IntArray, rows: IntArray, op: int) -> NDArray[np.bool_]:
        """Return for each storage whether a sample after an op found it in the role. `rows` are its lasting rows."""
        samples = self._samples_of(role)
        return self._found_by_any(
            samples, [*range(bisect_right(samples.op, op), len(samples.op))], storages, rows
        )

    def _found_by_any(
        self, samples: _SamplesOfRole, chosen: list[int], storages: IntArray, rows: IntArray
    ) -> NDArray[np.bool_]:
        """Return for each storage whether one of the chosen samples found it, as in `_found`."""
        chosen.sort(key=samples.time_ns.__getitem__)
        times_ns = np.array([samples.time_ns[row] for row in chosen], dtype=np.int64)
        # of the samples up to each one, the smallest `least_bytes`
        least = np.minimum.accumulate(np.array([samples.least_bytes[row] for row in chosen], dtype=np.int64))
        death_ns = self._death_ns[storages]
        count = np.searchsorted(times_ns, death_ns, side="right")  # samples while it was alive
        count[death_ns == NONE] = len(chosen)
        # a count of 0 reads the last entry, `_NEVER`, so no sample found the storage
        found: NDArray[np.bool_] = np.append(least, _NEVER)[count - 1] <= self._nbytes[rows]
        return found

    def _found(self, samples: _SamplesOfRole, row: int, storage: int, stretch: Stretch) -> bool:
        """Return True if a sample within a stretch found the storage in the role.

        It did if it examined the storage at all: the storage was alive, and not smaller than `least_bytes`. If the
        storage had lost the role by then, the recorder would have noted that, and the stretch would end before the
        sample.
        """
        death_ns = self._death_ns[storage]
        is_alive = death_ns == NONE or samples.time_ns[row] <= death_ns
        return bool(is_alive and samples.least_bytes[row] <= self._nbytes[stretch.row])


class _SamplesOfRole(NamedTuple):
    """The samples that examined one role, in the order of their ops. The fields are columns of `role_looks`."""

    op: list[int]
    in_op: list[int]
    least_bytes: list[int]
    time_ns: list[int]


def _stretches(role: str, starts: list[tuple[int, int]], ends: list[tuple[int, int]]) -> list[Stretch]:
    """Pair the starts of a role with its ends, in order.

    A start within a stretch begins no other stretch: the storage was only found in the role again.

    Args:
        role: the role.
        starts: the op and the row of `roles` of each start.
        ends: `end_op` and `known_op` of each stretch that has an end.
    """
    found: list[Stretch] = []
    waiting = sorted(ends)
    for start, row in sorted(starts):
        if found and start < found[-1].end_op:
            found[-1] = found[-1]._replace(last_op=max(found[-1].last_op, start))
            continue
        while waiting and waiting[0][0] < start:  # this end belongs to no start
            waiting.pop(0)
        end_op, known_op = waiting.pop(0) if waiting else (_NEVER, NONE)
        # A role with the number 0 was found before the first op, so the storage had it from the start. But a gradient
        # with the number 0 was found during the first op.
        first_op = start if start or role == "gradient" else NONE
        found.append(Stretch(first_op, known_op, NONE, end_op, row))
    return found
