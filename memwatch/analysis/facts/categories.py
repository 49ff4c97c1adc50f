"""Categories: what a piece of memory is for, and the rule that says so.

Rules are tried in order; the first that applies decides. Temporaries of an optimizer's step are
temporaries, not optimizer state: only what the optimizer keeps in its state is that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.analysis.facts.allocations import BASELINE, EXTERNAL, UNOBSERVED, WORKSPACE
from memwatch.capture.schema import ACCESSES, NONE, PHASES, ROLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

_ROLE_RULES = {
    "parameter": "it is a parameter of a module or of an optimizer",
    "buffer": "it is a buffer of a module",
    "optimizer state": "the optimizer keeps it in its state",
    "gradient": "it was the .grad of a parameter",
    "input": "it was an argument of the outermost module call",
    "unsharded parameter": "FSDP gathers the whole parameter in it",
    "unsharded gradient": "it is the gradient of a whole parameter, which FSDP has not reduced yet",
    "bucket": "DistributedDataParallel's reducer reduces the gradients in it",
    "communication": "DistributedDataParallel or FSDP2 made it to communicate",
}
_CATEGORY_OF_ROLE = {"unsharded gradient": "gradient", "bucket": "communication"}
"""The category that a role gives, where it has another name."""
_STRENGTH = (
    "unsharded parameter",
    "parameter",
    "buffer",
    "optimizer state",
    "gradient",
    "unsharded gradient",
    "bucket",
    "communication",
    "input",
)
"""Roles that give a category, the strongest first."""
_COLLECTIVES = ("c10d.", "_c10d_functional.", "c10d_functional.")
"""How the names of the ops begin by which processes communicate."""


class Categories(NamedTuple):
    """Per allocation: its category, the rule that assigned it, its role and the name that this gives, if any."""

    category: list[str]
    rule: list[str]
    role: list[str]
    role_name: list[str]


def categorise(capture: Capture, allocations: Allocations) -> Categories:
    """Return the category of every allocation."""
    roles = _roles(capture)
    saved = _saved(capture, allocations.named)
    crosses = _crosses_to_backward(capture, allocations.named)
    collective = _collective_ops(capture)
    communicated = _communicated_in_backward(capture, collective, allocations.named)
    found = Categories([], [], [], [])
    columns = zip(
        allocations.storage.tolist(), allocations.origin.tolist(), allocations.op.tolist(), strict=True
    )
    for storage, origin, op in columns:
        role = role_name = ""
        if storage != NONE and storage in roles:
            strongest, role, role_name = roles[storage]
            category, rule = _CATEGORY_OF_ROLE.get(strongest, strongest), _ROLE_RULES[strongest]
        else:
            is_saved, does_cross = storage != NONE and saved[storage], storage != NONE and crosses[storage]
            category, rule = _without_role(storage, origin, op, is_saved=is_saved, crosses=does_cross)
            if category in ("temporary", "input") and storage != NONE:
                if NONE < op < len(collective) and collective[op]:
                    category, rule = "communication", "a collective made it"
                elif communicated[storage]:
                    category, rule = "communication", "a collective works on it in backward"
        found.category.append(category)
        found.rule.append(rule)
        found.role.append(role)
        found.role_name.append(role_name)
    return found


def _without_role(storage: int, origin: int, op: int, *, is_saved: bool, crosses: bool) -> tuple[str, str]:
    """Return category and rule of an allocation that is no parameter, buffer, state, gradient or input."""
    if origin == WORKSPACE:
        return "workspace", "allocated and freed within one op; no tensor names it"
    if storage == NONE:
        return "unknown", _unnamed_rule(op)
    if is_saved:
        return "activation", "autograd saved it for backward"
    if crosses:
        return "activation", "made in forward and read by a backward op"
    if origin in (BASELINE, EXTERNAL):
        return "input", "it was there before, made outside the block or the allocator"
    unrecorded = origin == UNOBSERVED and op == NONE
    rule = (
        "made where no op was recorded, used by one later"
        if unrecorded
        else "made by an op, in no other role"
    )
    return "temporary", rule


def _collective_ops(capture: Capture) -> NDArray[np.bool_]:
    """Return, per op, whether processes communicate in it."""
    names = capture.tables["ops"]["name"]
    known, of_op = np.unique(names, return_inverse=True)
    is_collective = np.array([text.startswith(_COLLECTIVES) for text in capture.text(known)], dtype=bool)
    found: NDArray[np.bool_] = is_collective[of_op] if len(known) else np.zeros(0, dtype=bool)
    return found


def _communicated_in_backward(capture: Capture, collective: NDArray[np.bool_], named: int) -> IntArray:
    """Return 1 for each storage that a collective took while a backward ran, as buckets made before the block."""
    taken = np.zeros(named, dtype=np.int64)
    uses, phase = capture.tables["uses"], capture.tables["ops"]["phase"]
    if collective.any():
        taken[uses["storage"][(collective & (phase == PHASES.index("backward")))[uses["op"]]]] = 1
    return taken


def _unnamed_rule(op: int) -> str:
    if op == NONE:
        return "allocated outside every recorded op (compiled code, C++ or another mode)"
    return "allocated in an op and kept after it; no tensor was seen on it"


def _roles(capture: Capture) -> dict[int, tuple[str, str, str]]:
    """Return, per storage, its strongest role, and the role that names its holder, with that name.

    With `gradient_as_bucket_view` a bucket is what the gradients lie in: it is theirs, and the reducer keeps it.
    """
    strength = {role: rank for rank, role in enumerate(_STRENGTH)}
    rows = capture.tables["roles"]
    found: dict[int, tuple[str, str, str]] = {}
    for storage, number, name in zip(
        rows["storage"].tolist(), rows["role"].tolist(), capture.text(rows["name"]), strict=True
    ):
        role = ROLES[number]
        if role not in strength:
            continue
        strongest, holding, known = found.get(storage, (role, role, name))
        if strength[role] < strength[strongest]:
            strongest = role
            if holding != "bucket":
                holding, known = role, name
        elif role == "bucket":
            holding, known = role, name
        found[storage] = strongest, holding, known
    return found


def _saved(capture: Capture, named: int) -> IntArray:
    saved = np.zeros(named, dtype=np.int64)
    storages = capture.tables["packs"]["storage"]
    saved[storages[storages != NONE]] = 1
    return saved


def _crosses_to_backward(capture: Capture, named: int) -> IntArray:
    """Return 1 for each storage that a forward op made and a backward op read."""
    crosses = np.zeros(named, dtype=np.int64)
    uses, births, phase = capture.tables["uses"], capture.tables["births"], capture.tables["ops"]["phase"]
    if not len(phase):
        return crosses
    made_forward = np.zeros(named, dtype=bool)
    by_op = births["op"] != NONE
    made_forward[births["storage"][by_op]] = phase[births["op"][by_op]] == PHASES.index("forward")
    reads = (uses["access"] == ACCESSES.index("read")) & (phase[uses["op"]] == PHASES.index("backward"))
    read = uses["storage"][reads]
    crosses[read[made_forward[read]]] = 1
    return crosses
