"""Decide the purpose of each piece of memory: its category, and the rule that chose it.

The rules are tried in order. The first rule that applies decides. Temporaries of an optimizer's step are temporaries.
Only tensors that stay in the optimizer's state are optimizer state. This includes a tensor that a step makes for its
state and drops before a sample finds it there, as in LBFGS. Memory that stays alive across iterations is *held*:
data, averaged weights, caches. A category that was inferred is marked as inferred.

An argument of a module is an input of the program unless another model computed it. A Lightning module that calls its
layers itself passes the result of each layer to the next, and no call is inside another. An input counts as held if a
whole iteration after its use does not use it. A prefetched batch is dropped after its turn and stays an input; an
item of a list stays alive and is held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.allocations import (
    BASELINE,
    BY_THREAD,
    EXTERNAL,
    UNOBSERVED,
    UNRECORDED,
    WORKSPACE,
    Allocations,
)
from memwatch.analysis.facts.coded import Coded
from memwatch.analysis.facts.forward_ops import crosses_to_backward, saved_by_autograd
from memwatch.analysis.facts.places import gives_storage, lifts
from memwatch.analysis.facts.recomputes import Recomputes
from memwatch.analysis.facts.role_times import InRole, PastRole
from memwatch.capture.schema import ACCESSES, BACKWARD, NONE
from memwatch.kinds.roles import OF_TRAINING, ROLE_OF, ROLE_ROWS, ROLES

if TYPE_CHECKING:
    from collections.abc import Collection, Container

    from numpy.typing import NDArray

    from memwatch.analysis.facts.iterations import KeptAcross
    from memwatch.capture import Capture
    from memwatch.capture.columns import IntArray

_FUNCTIONAL: Final = ("_c10d_functional.", "c10d_functional.", "_dtensor.")
"""Prefixes of the names of collectives that leave their arguments unchanged and return new memory."""
_COLLECTIVES: Final = ("c10d.", *_FUNCTIONAL)
"""Prefixes of the names of the ops by which processes communicate."""
_RECEIVES: Final = ("c10d.recv_",)
_SENDS: Final = ("c10d.send",)
_UNDEFINED: Final = ("aten.empty", "aten.new_empty")
"""Prefixes of the names of ops that make memory with undefined content."""
COMMUNICATION: Final = ("communication", "unsharded parameter")
"""Categories of memory that collectives need."""


def collective_ops(capture: Capture) -> NDArray[np.bool_]:
    """Return for each op whether processes communicate in it."""
    return _named(capture, _COLLECTIVES)


def _named(capture: Capture, prefixes: tuple[str, ...]) -> NDArray[np.bool_]:
    """Return, per op, whether its name begins with one of some prefixes."""
    names = capture.tables["ops"]["name"]
    known, of_op = np.unique(names, return_inverse=True)
    is_named = np.array([text.startswith(prefixes) for text in capture.text(known)], dtype=bool)
    found: NDArray[np.bool_] = is_named[of_op] if len(known) else np.zeros(0, dtype=bool)
    return found


def communicated_in_backward(
    capture: Capture, collective: NDArray[np.bool_], named: int
) -> NDArray[np.bool_]:
    """Return the storages that a collective used during a backward, such as buckets made before the block.

    A storage that collectives only read does not become a buffer: a gradient in flight stays a gradient.
    """
    taken = np.zeros(named, dtype=bool)
    uses, phase = capture.tables["uses"], capture.tables["ops"]["phase"]
    if collective.any():
        works_on = collective & (phase == BACKWARD) & ~_named(capture, (*_FUNCTIONAL, *_SENDS))
        taken[uses["storage"][works_on[uses["op"]]]] = True
    return taken


def received_into(capture: Capture, collective: NDArray[np.bool_], named: int) -> NDArray[np.bool_]:
    """Return the storages into which a process received data.

    torch's schemas do not mark the arguments that a collective writes. A receive only writes. For the other
    collectives, a storage with undefined contents that a collective uses first is an output, because there is nothing
    in it to send.
    """
    received = np.zeros(named, dtype=bool)
    if not collective.any():
        return received
    uses, births = capture.tables["uses"], capture.tables["births"]
    received[uses["storage"][_named(capture, _RECEIVES)[uses["op"]]]] = True
    touched = uses["access"] != ACCESSES.index("output")
    none = len(collective)
    first_op = np.full(named, none, dtype=np.int64)
    np.minimum.at(first_op, uses["storage"][touched], uses["op"][touched].astype(np.int64))
    writes = np.append(collective & ~_named(capture, _SENDS), False)
    undefined = np.append(_named(capture, _UNDEFINED), False)
    made = np.where(births["op"] == NONE, none, births["op"])
    received[births["storage"][undefined[made] & writes[first_op[births["storage"]]]]] = True
    return received


def for_collectives(capture: Capture, allocations: Allocations, category: Coded) -> NDArray[np.bool_]:
    """Return for each allocation of a tensor whether a collective needs it, made it, or received data into it.

    This holds for memory with other uses too: autograd may save a collective's result, and a module may take received
    memory.
    """
    collective = collective_ops(capture)
    made = np.append(collective, False)[np.where(allocations.op == NONE, len(collective), allocations.op)]
    received = np.append(received_into(capture, collective, allocations.named), False)[allocations.storage]
    found: NDArray[np.bool_] = allocations.storage != NONE
    # memory of the training keeps its category: a broadcast writes into parameters, so that all ranks start alike
    found &= category.isin(COMMUNICATION) | ((made | received) & ~category.isin(OF_TRAINING))
    return found


_STATE: Final = ROLES.index("optimizer state")


def like_state(capture: Capture, allocations: Allocations, kept: KeptAcross) -> NDArray[np.bool_]:
    """Return the latest allocation of each call site whose earlier kept allocations were optimizer state."""
    roles, found = capture.tables["roles"], kept.like_others.copy()
    storages = roles["storage"][roles["role"] == _STATE]
    if not found.any() or not len(storages):
        return np.zeros(len(allocations), dtype=bool)
    stacks: IntArray = np.append(capture.tables["ops"]["stack"], NONE)[
        np.minimum(allocations.op, capture.rows("ops"))
    ]
    stacks[(allocations.op == NONE) | (allocations.storage == NONE)] = NONE
    is_state, size = np.isin(allocations.storage, storages), int(stacks.max(initial=0)) + 2
    others = kept.needed & ~found
    all_kept = np.bincount(stacks[others] + 1, minlength=size)
    of_state = np.bincount(stacks[others & is_state] + 1, minlength=size)
    mostly = 2 * of_state > all_kept
    mostly[0] = False  # the entry of allocations without a known call stack
    like: NDArray[np.bool_] = found & mostly[stacks + 1] & ~is_state
    return like


_OUTPUT: Final = ACCESSES.index("output")
_INPUT: Final = ROLES.index("input")
_FEWEST_ENDS: Final = 2
"""Ends of iterations. A whole iteration lies between two."""


def idle_inputs(capture: Capture, allocations: Allocations, kept: KeptAcross) -> NDArray[np.bool_]:
    """Return which inputs are idle for a whole iteration after a use, or come from a line most of whose inputs are.

    Args:
        capture: the recorded tables.
        allocations: every piece of memory.
        kept: the allocations that are alive across iterations.
    """
    roles = capture.tables["roles"]
    is_input = np.zeros(allocations.named + 1, dtype=bool)  # the last is for allocations of no storage
    is_input[roles["storage"][roles["role"] == _INPUT]] = True
    inputs = np.flatnonzero(is_input[allocations.storage])
    idle = np.zeros(len(allocations), dtype=bool)
    if not len(inputs) or len(kept.ends_ns) < _FEWEST_ENDS:
        return idle
    ends_ns = np.sort(kept.ends_ns)
    by_graphs = _saved_for_long(capture, ends_ns)
    idle[inputs] = _is_idle_after_use(capture, allocations, inputs, ends_ns)
    idle &= kept.needed & ~np.isin(allocations.storage, by_graphs)
    made_by = np.append(capture.tables["ops"]["stack"], NONE)
    stacks = made_by[np.minimum(allocations.op[inputs], capture.rows("ops"))]
    for stack in np.unique(stacks[idle[inputs] & (stacks != NONE)]):
        alike = inputs[stacks == stack]
        idle[alike] |= 2 * np.count_nonzero(idle[alike]) > len(alike)
    return idle


def _saved_for_long(capture: Capture, ends_ns: IntArray) -> IntArray:
    """Return the storages that a graph keeps over a whole iteration."""
    packs, unpacks = capture.tables["packs"], capture.tables["unpacks"]
    let_go_ns = np.full(int(packs["pack"].max(initial=-1)) + 1, np.iinfo(np.int64).max)
    released = unpacks["released"] == 1
    let_go_ns[unpacks["pack"][released]] = unpacks["time_ns"][released]
    first, last = (
        np.searchsorted(ends_ns, time_ns) for time_ns in (packs["time_ns"], let_go_ns[packs["pack"]])
    )
    storages: IntArray = packs["storage"][last - first >= _FEWEST_ENDS]
    return storages


def _is_idle_after_use(
    capture: Capture, allocations: Allocations, rows: IntArray, ends_ns: IntArray
) -> NDArray[np.bool_]:
    """Return which of some allocations lie idle for a whole iteration after an op used them."""
    storages, uses = allocations.storage[rows], capture.tables["uses"]
    is_wanted = np.zeros(allocations.named + 1, dtype=bool)
    is_wanted[storages] = True
    used = is_wanted[uses["storage"]] & (uses["access"] != _OUTPUT)
    died = allocations.death_ns[rows] != NONE
    death_ns = np.where(died, allocations.death_ns[rows], np.iinfo(np.int64).max)
    # for each storage: the iterations that use it, then the iteration that ends its life
    of = np.concatenate([uses["storage"][used], storages])
    iteration = np.searchsorted(
        ends_ns, np.concatenate([capture.tables["ops"]["start_ns"][uses["op"][used]], death_ns])
    )
    order = np.lexsort((iteration, of))
    of, iteration = of[order], iteration[order]
    waits = (of[1:] == of[:-1]) & (np.diff(iteration) >= _FEWEST_ENDS)
    found: NDArray[np.bool_] = np.isin(storages, of[:-1][waits])
    return found


_READ, _WRITE = map(ACCESSES.index, ("read", "write"))
_MOST_WRITERS: Final = 16
"""Ops that wrote into one storage and are followed. A guess: in a loop, one line fills a buffer many times."""
_OF_MODELS: Final = (ROLES.index("parameter"), ROLES.index("buffer"))


class DerivedInputs:
    """Follow storages back to their sources, the tensors that ops computed them from."""

    def __init__(self, capture: Capture) -> None:
        births, uses, roles = (capture.tables[table] for table in ("births", "uses", "roles"))
        self._made_by: IntArray = np.full(int(births["storage"].max(initial=NONE)) + 1, NONE, dtype=np.int32)
        self._made_by[births["storage"]] = births["op"]
        self._module: IntArray = capture.tables["ops"]["module"]
        self._ops, self._storages, self._access = uses["op"], uses["storage"], uses["access"]
        if (self._ops[1:] < self._ops[:-1]).any():  # parallel ops are written as they end
            order = np.argsort(self._ops, kind="stable")
            self._ops, self._storages, self._access = (
                column[order] for column in (self._ops, self._storages, self._access)
            )
        written = np.flatnonzero(self._access == _WRITE)
        # A module may write a part of its argument only, so its writes say nothing about the rest.
        written = written[self._module[self._ops[written]] == NONE]
        written = written[np.argsort(self._storages[written], kind="stable")]
        self._written, self._written_by = self._storages[written], self._ops[written]
        owned = roles["storage"][np.isin(roles["role"], _OF_MODELS)]
        self._is_derived: dict[int, bool] = dict.fromkeys(owned.tolist(), True)

    def __contains__(self, storage: int) -> bool:
        """Return True if a storage is a parameter or buffer, if a module's op made it, or if ops made it from these.

        Ops outside modules that only wrote into it count too.
        """
        waiting, met = [storage], set()
        while waiting:
            one = waiting.pop()
            made = int(self._made_by[one]) if 0 <= one < len(self._made_by) else NONE
            if self._is_derived.get(one, made != NONE and int(self._module[made]) != NONE):
                self._is_derived[storage] = True
                return True
            if one not in met and one not in self._is_derived:
                for op in (*([made] if made != NONE else ()), *self._writers(one)):
                    first, last = np.searchsorted(self._ops, [op, op + 1])
                    read = self._access[first:last] == _READ
                    waiting += self._storages[first:last][read].tolist()
            met.add(one)
        self._is_derived.update(dict.fromkeys(met, False))
        return False

    def _writers(self, storage: int) -> list[int]:
        """Return the ops outside modules that wrote into a storage, the first few."""
        first, last = np.searchsorted(self._written, [storage, storage + 1])
        ops: list[int] = self._written_by[first : min(last, first + _MOST_WRITERS)].tolist()
        return ops


_INPUT_RULES = {
    **dict.fromkeys((BASELINE, EXTERNAL), "it was there before, made outside the block or the allocator"),
    BY_THREAD: "another thread made it, and this one uses it",
}
_UNSURE_RULES: Final = {
    InRole.EARLIER: "inferred: {rule}, but no longer at the next search",
    InRole.BETWEEN: "inferred: {rule} at the searches before and after",
    InRole.UNCONFIRMED: "inferred: {rule} at the last search before",
}
_OUTLIVES: Final = "it was {name} until before op {op}, and the program keeps it"
_KEPT: Final = "kept from one iteration into the next, outside modules and optimizers"
_WRITTEN_INPUT: Final = "an argument of the outermost module call, kept into the next iteration and written"
_IDLE_INPUT: Final = "an argument of the outermost module call, kept over iterations that do not use it"
_KEPT_ACROSS_PASSES: Final = (
    "kept from one pass of the program's loop into the next, in a container or an object"
)
_LIKE_OTHERS: Final = "inferred: an earlier tensor of the same line was kept into a later iteration"
_LIKE_OTHERS_ACROSS_PASSES: Final = "inferred: an earlier tensor of the same line was kept into a later pass"
_LIKE_STATE: Final = "inferred: the optimizer's state keeps an earlier tensor of the same line"
_KEPT_BY_OBJECTS: Final = "a global, a class or a cache was seen to keep it, whichever call returns"
_TEMPORARY: Final = "made by an op, without another role, and later iterations do not need it"
_TEMPORARY_OF_ALL: Final = "made by an op, without another role; no iteration was marked"
_OF_DATA: Final = "made of data that was given or read (`torch.tensor`, `torch.load`), without another role"
_SAVED: Final = "autograd saved it for backward"
_COLLECTIVE_MADE: Final = "a collective made it"
_RECEIVED: Final = "a collective or a receive wrote into it"
_COPIED: Final = "allocated in a collective's own call and kept after it; no tensor of Python's shows it"
_NOT_RECORDED: Final = "the imported memory snapshot does not contain its purpose"
_COMPUTED_AGAIN: Final = "torch.utils.checkpoint computed it again in backward"
_COMPUTED_AGAIN_BY_HAND: Final = (
    "inferred: the backward of a program's own autograd.Function computed it with gradients on, as a checkpoint "
    "by hand does"
)


class Categories(NamedTuple):
    """Per allocation: its category, the rule that decided it, its role, and the name and the module of the role."""

    category: Coded
    rule: Coded
    role: Coded
    role_name: Coded
    role_module: Coded


class _Assigned(NamedTuple):
    """One kind of allocations: the values that they share, with the fields of `Categories`."""

    category: str
    rule: str
    role: str = ""
    role_name: str = ""
    role_module: int = NONE


class Categoriser:
    """Decides the category of every allocation at an event.

    A search for findings needs the categories at hundreds of events. They differ only for storages whose role has
    ended by the event, or may have ended. So the other categories are decided once, in the constructor.

    Args:
        capture: the recorded tables.
        allocations: every piece of memory.
        kept: the allocations that are alive across iterations.
    """

    def __init__(self, capture: Capture, allocations: Allocations, kept: KeptAcross) -> None:
        self._capture, self._allocations, self._kept = capture, allocations, kept
        if capture.lacks("categories"):
            return
        self._derived = DerivedInputs(capture)
        self._recomputed, self._written = _recompute_rules(capture), _written(capture, allocations.named)
        self._idle = idle_inputs(capture, allocations, kept)
        self._alike = like_state(capture, allocations, kept)
        self._codes = _codes_of_traits(capture, allocations, kept)
        different = np.unique(self._codes)
        self._kinds = [_Assigned(*_by_itself(_Traits.of_code(code), None)) for code in different.tolist()]
        self._number_of: dict[_Assigned, int] = {}
        self._base = np.searchsorted(different, self._codes).astype(np.int32)
        self._roles = _roles(capture, ())
        is_special = np.isin(allocations.storage, list(self._roles)) | self._alike
        is_special |= np.isin(allocations.op, list(self._recomputed))
        self._decide(np.flatnonzero(is_special), self._base, self._roles, {}, {})

    def at(self, past: dict[tuple[int, str], PastRole]) -> Categories:
        """Return the category of every allocation.

        Args:
            past: by storage and role, the roles that are over, or may be.
        """
        if self._capture.lacks("categories"):
            return _all_unknown(len(self._allocations))
        number_of_kind = self._base
        if past:
            over = {key for key, role in past.items() if role.is_over}
            storages = {storage for storage, _ in past}
            roles = _roles(self._capture, over, storages) if over else self._roles
            outlived = _outlived_roles(self._capture, self._allocations, self._kept, past)
            number_of_kind = self._base.copy()
            rows = self._allocations.rows_of(sorted(storages))
            self._decide(rows, number_of_kind, roles, outlived, past)
        return _coded([*self._kinds, *self._number_of], number_of_kind)

    def _decide(
        self,
        rows: IntArray,
        number_of_kind: IntArray,
        roles: dict[int, tuple[str, str, str, int]],
        outlived: dict[int, tuple[str, str]],
        past: dict[tuple[int, str], PastRole],
    ) -> None:
        """Decide the kinds of some allocations, and write their numbers into `number_of_kind`."""
        allocations = self._allocations
        columns = (allocations.storage, allocations.origin, allocations.op, self._codes)
        of_rows = zip(rows.tolist(), *(column[rows].tolist() for column in columns), strict=True)
        for row, storage, origin, op, code in of_rows:
            if storage in roles and not (roles[storage][0] == "input" and storage in self._derived):
                strongest, role, name, module = roles[storage]
                unsure = past.get((storage, strongest))
                is_state = bool(self._kept.by_itself[row] and self._written[storage])
                category, rule = _by_role(strongest, unsure, is_state=is_state, is_idle=self._idle[row])
                found = _Assigned(category, rule, role, name, module)
            elif storage != NONE and origin != WORKSPACE and op in self._recomputed:
                found = _Assigned("recomputed", self._recomputed[op])
            else:
                found = _Assigned(*_by_itself(_Traits.of_code(code), outlived.get(storage)))
                if self._alike[row] and found.category == "held":
                    found = _Assigned("optimizer state", _LIKE_STATE)
            number = self._number_of.setdefault(found, len(self._kinds) + len(self._number_of))
            number_of_kind[row] = number


def _coded(kinds: list[_Assigned], of_kind: IntArray) -> Categories:
    """Return the categories of allocations by the number of their kind."""
    columns = zip(*kinds, strict=True) if kinds else ((),) * len(Categories._fields)
    # the None at the end makes numpy build a one-dimensional array of objects
    values = [np.array([*column, None], dtype=object)[:-1] for column in columns]
    return Categories(*(Coded(column, of_kind) for column in values))


class _Traits(NamedTuple):
    """The facts that decide the category of an allocation without a role. All fields except `origin` are 0 or 1.

    Attributes:
        origin: its origin in `Allocations`.
        has_op: an op made it.
        is_seen: a tensor was seen on it.
        is_of_data: `torch.tensor` or `torch.load` made it from data.
        needed: as in `KeptAcross`, like the next three.
        by_itself: as in `KeptAcross`.
        like_others: as in `KeptAcross`.
        lasting: as in `KeptAcross`.
        is_told: the program has a sign of iterations; otherwise the passes of its loop count as iterations.
        is_saved: autograd saved it.
        crosses: an op of forward made it, and an op of backward reads it.
        by_collective: a collective made it.
        received: a collective, or a receive, wrote into it.
        communicated: a collective works on it in a backward.
    """

    origin: int
    has_op: int
    is_seen: int
    is_of_data: int
    needed: int
    by_itself: int
    like_others: int
    lasting: int
    is_told: int
    is_saved: int
    crosses: int
    by_collective: int
    received: int
    communicated: int

    @classmethod
    def of_code(cls, code: int) -> _Traits:
        """Return the traits that a number encodes: one bit for each flag, and `origin` in the bits above them."""
        flags = len(cls._fields) - 1
        return cls(code >> flags, *(code >> flag & 1 for flag in reversed(range(flags))))


def _codes_of_traits(capture: Capture, allocations: Allocations, kept: KeptAcross) -> IntArray:
    """Return the traits of each allocation, as one number."""
    storage, op = allocations.storage, allocations.op
    collective = collective_ops(capture)
    by_storage = (
        saved_by_autograd(capture, allocations.named),
        crosses_to_backward(capture, allocations.named),
        communicated_in_backward(capture, collective, allocations.named),
        received_into(capture, collective, allocations.named),
    )
    saved, crosses, communicated, received = (np.append(column, False)[storage] for column in by_storage)
    made = np.where((op != NONE) & (op < len(collective)), op, op.dtype.type(len(collective)))
    columns: dict[str, NDArray[Any]] = {
        "origin": allocations.origin,
        "has_op": op != NONE,
        "is_seen": storage != NONE,
        "is_of_data": lifts(capture, allocations.named).is_lift[storage],
        "needed": kept.needed,
        "by_itself": kept.by_itself,
        "like_others": kept.like_others,
        "lasting": kept.lasting,
        "is_told": np.full(len(storage), kept.are_told),
        "is_saved": saved,
        "crosses": crosses,
        "by_collective": np.append(collective, False)[made],
        "received": received,
        "communicated": communicated,
    }
    codes: IntArray = np.zeros(len(storage), dtype=np.int32)
    for name in _Traits._fields:
        codes *= 2
        codes += columns[name]
    return codes


def _by_itself(traits: _Traits, outlived: tuple[str, str] | None) -> tuple[str, str]:
    """Return category and rule of an allocation without a role, if no checkpoint recomputed it.

    Args:
        traits: the known facts about it.
        outlived: category and rule if it had a role that is over; else None.
    """
    category, rule = _without_role(traits)
    if category in ("temporary", "input", "held") and traits.is_seen:
        if traits.by_collective:
            category, rule = "communication", _COLLECTIVE_MADE
        elif traits.received:
            category, rule = "communication", _RECEIVED
        elif traits.communicated:
            category, rule = "communication", "a collective works on it in backward"
        elif outlived is not None:
            category, rule = outlived
    if category == "temporary" and traits.lasting:
        return "held", _KEPT_BY_OBJECTS
    if category == "temporary" and traits.like_others:
        return "held", _LIKE_OTHERS if traits.is_told else _LIKE_OTHERS_ACROSS_PASSES
    return category, rule


def _all_unknown(count: int) -> Categories:
    return _coded([_Assigned("unknown", _NOT_RECORDED)], np.zeros(count, dtype=np.int32))


def _by_role(role: str, unsure: PastRole | None, *, is_state: bool, is_idle: bool) -> tuple[str, str]:
    """Return category and rule of a storage in a role, or of a storage that may have left its role.

    If the program gives a storage to a module, writes to it and keeps it across iterations, it is state of the
    program, such as a cache. If it is idle during some of these iterations, it is data that the program holds.
    """
    if role == "input" and (is_state or is_idle):
        return "held", _WRITTEN_INPUT if is_state else _IDLE_INPUT
    row = ROLE_OF[role]
    rule = row.rule or ""
    if unsure is not None:
        rule = _UNSURE_RULES[unsure.state].format(rule=rule)
    return row.category or role, rule


def _outlived_roles(
    capture: Capture, allocations: Allocations, kept: KeptAcross, past: dict[tuple[int, str], PastRole]
) -> dict[int, tuple[str, str]]:
    """Return category and rule of the storages that outlive a role: "held" if they live into another iteration."""
    if not past:
        return {}
    starts_ns, names = capture.tables["ops"]["start_ns"], capture.tables["roles"]["name"]
    rows, found = allocations.rows_of([storage for storage, _ in past]), {}
    death_ns = dict(zip(allocations.storage[rows].tolist(), allocations.death_ns[rows].tolist(), strict=True))
    for (storage, name), role in past.items():
        if (
            not role.is_over or name == "selective checkpoint"
        ):  # the checkpointed region keeps the storage then
            continue
        end_ns = starts_ns[role.end_op] if role.end_op < len(starts_ns) else np.iinfo(np.int64).max
        ends_ns, dies_ns = kept.ends_ns[kept.ends_ns > end_ns], death_ns[storage]
        category = "held" if dies_ns == NONE or (ends_ns < dies_ns).any() else "temporary"
        found[storage] = category, _OUTLIVES.format(name=capture.strings[names[role.row]], op=role.end_op)
    return found


def _without_role(traits: _Traits) -> tuple[str, str]:
    """Return category and rule of an allocation that is not a parameter, buffer, state, gradient or input."""
    if traits.origin == WORKSPACE:
        return "workspace", "allocated and freed within one op; no tensor names it"
    if not traits.is_seen:
        is_copy = traits.by_collective and traits.origin == UNOBSERVED
        return ("communication", _COPIED) if is_copy else ("unknown", _unnamed_rule(traits))
    if traits.by_itself if traits.is_saved or traits.crosses else traits.needed:
        return "held", _KEPT if traits.is_told else _KEPT_ACROSS_PASSES
    if traits.is_saved:
        return "activation", _saved_rule(traits)
    if traits.crosses and not (traits.by_collective or traits.received):
        return "activation", "inferred: made in forward and read in backward"
    return _of_one_iteration(traits)


def _saved_rule(traits: _Traits) -> str:
    if traits.by_collective or traits.received:
        return f"{_SAVED}; {_COLLECTIVE_MADE if traits.by_collective else _RECEIVED}"
    return _SAVED


def _of_one_iteration(traits: _Traits) -> tuple[str, str]:
    """Return category and rule of an allocation without a role, needed in one iteration and by no backward."""
    if traits.origin in _INPUT_RULES:
        return "input", _INPUT_RULES[traits.origin]
    if traits.origin == UNRECORDED:
        return "temporary", "made in a step that was not recorded, and used in a recorded one"
    if traits.origin == UNOBSERVED and not traits.has_op:
        return (
            "temporary",
            _OF_DATA if traits.is_of_data else "made where no op was recorded, used by one later",
        )
    return "temporary", _TEMPORARY if traits.is_told else _TEMPORARY_OF_ALL


def _recompute_rules(capture: Capture) -> dict[int, str]:
    """Return, per op that ran again in backward, the rule: torch's checkpoint ran it, or memwatch inferred it."""
    found = Recomputes(capture)
    again = np.flatnonzero(found.is_recompute)
    rules = np.where(found.run_of_op[again] != NONE, _COMPUTED_AGAIN, _COMPUTED_AGAIN_BY_HAND)
    return dict(zip(again.tolist(), rules.tolist(), strict=True))


def _unnamed_rule(traits: _Traits) -> str:
    if traits.origin == BY_THREAD:
        return "another thread allocated it; what for was not seen"
    if traits.origin == BASELINE:
        return "the allocator counted it at entry, and no tensor of Python's shows it: C++ holds it"
    if traits.origin == UNRECORDED:
        return "allocated in a step that was not recorded, and seen in no recorded one"
    if not traits.has_op:
        return "allocated outside every recorded op (compiled code, C++ or another mode)"
    return "allocated in an op and kept after it; no tensor was seen on it"


def _roles(
    capture: Capture, over: Container[tuple[int, str]], storages: Collection[int] | None = None
) -> dict[int, tuple[str, str, str, int]]:
    """Return, per storage, its strongest role and the role that names its holder, with its name and module.

    Roles that are over are left out. Without `storages`, all storages are looked at.

    With `gradient_as_bucket_view` the gradients lie in a bucket. The bucket counts as gradients, and its holder is
    the reducer.
    """
    strength = {row.name: row.strength for row in ROLE_ROWS if row.strength is not None}
    table = capture.tables["roles"]
    rows = {name: table[name] for name in ("storage", "role", "name", "module")}
    if storages is not None:
        chosen = np.flatnonzero(np.isin(rows["storage"], list(storages)))
        rows = {name: column[chosen] for name, column in rows.items()}
    found: dict[int, tuple[str, str, str, int]] = {}
    columns = (rows["role"].tolist(), capture.text(rows["name"]), rows["module"].tolist())
    for storage, number, name, module in zip(rows["storage"].tolist(), *columns, strict=True):
        role = ROLES[number]
        if role not in strength or (storage, role) in over:
            continue
        strongest, holding, known, owner = found.get(storage, (role, role, name, module))
        if strength[role] < strength[strongest]:
            strongest = role
            if holding != "bucket":
                holding, known, owner = role, name, module
        elif role == "bucket":
            holding, known, owner = role, name, module
        found[storage] = strongest, holding, known, owner
    return found


def _written(capture: Capture, named: int) -> NDArray[np.bool_]:
    """Return, for each storage, whether an op wrote into it after it was made, as one does into a cache."""
    written, uses = np.zeros(named, dtype=bool), capture.tables["uses"]
    writes, gives = uses["access"] == ACCESSES.index("write"), gives_storage(capture)
    if gives.any():
        writes &= ~gives[uses["op"]]
    written[uses["storage"][writes]] = True
    return written
