"""Categories: what a piece of memory is for, and the rule that says so.

Rules are tried in order; the first that applies decides. Temporaries of an optimizer's step are
temporaries, not optimizer state: only what the optimizer keeps in its state is that. What is alive across iterations
is *held*, whoever holds it: data, averaged weights, caches. A rule that infers says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.analysis.facts.allocations import BASELINE, EXTERNAL, UNOBSERVED, WORKSPACE
from memwatch.capture.schema import ACCESSES, NONE, PHASES, ROLES

if TYPE_CHECKING:
    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.analysis.facts.iterations import KeptAcross
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

_ROLE_RULES = {
    "parameter": "it is a parameter of a module or of an optimizer",
    "buffer": "it is a buffer of a module",
    "optimizer state": "the optimizer keeps it in its state",
    "gradient": "it was the .grad of a parameter",
    "input": "it was an argument of the outermost module call",
}


class Categories(NamedTuple):
    """Per allocation: its category, the rule that assigned it, and the name that its role gives, if any."""

    category: list[str]
    rule: list[str]
    role_name: list[str]


def categorise(capture: Capture, allocations: Allocations, kept: KeptAcross) -> Categories:
    """Return the category of every allocation."""
    roles = _roles(capture)
    saved = _saved(capture, allocations.named)
    crosses = _crosses_to_backward(capture, allocations.named)
    found = Categories([], [], [])
    columns = zip(
        allocations.storage.tolist(),
        allocations.origin.tolist(),
        allocations.op.tolist(),
        kept.needed.tolist(),
        kept.by_itself.tolist(),
        kept.like_others.tolist(),
        strict=True,
    )
    for storage, origin, op, needed, by_itself, like_others in columns:
        role_name = ""
        if storage != NONE and storage in roles:
            category, role_name = roles[storage]
            rule = _ROLE_RULES[category]
        else:
            is_saved, does_cross = storage != NONE and saved[storage], storage != NONE and crosses[storage]
            is_held = by_itself if is_saved or does_cross else needed
            category, rule = _without_role(
                storage, origin, op, is_held=is_held, is_saved=is_saved, crosses=does_cross
            )
            if category == "temporary" and like_others:
                category, rule = (
                    "held",
                    "inferred: what the same line made before was kept into a later iteration",
                )
        found.category.append(category)
        found.rule.append(rule)
        found.role_name.append(role_name)
    return found


def _without_role(
    storage: int, origin: int, op: int, *, is_held: bool, is_saved: bool, crosses: bool
) -> tuple[str, str]:
    """Return category and rule of an allocation that is no parameter, buffer, state, gradient or input."""
    if origin == WORKSPACE:
        return "workspace", "allocated and freed within one op; no tensor names it"
    if storage == NONE:
        return "unknown", _unnamed_rule(op)
    if is_held:
        return "held", "kept from one iteration into the next; no module and no optimizer owns it"
    if is_saved:
        return "activation", "autograd saved it for backward"
    if crosses:
        return "activation", "inferred: made in forward and read by a backward op"
    return _of_one_iteration(origin, op)


def _of_one_iteration(origin: int, op: int) -> tuple[str, str]:
    """Return category and rule of what has no role, is not needed in backward, nor in another iteration."""
    if origin in (BASELINE, EXTERNAL):
        return "input", "it was there before, made outside the block or the allocator"
    if origin == UNOBSERVED and op == NONE:
        return "temporary", "made where no op was recorded, used by one later"
    return "temporary", "made by an op, in no other role, and no later iteration needs it"


def _unnamed_rule(op: int) -> str:
    if op == NONE:
        return "allocated outside every recorded op (compiled code, C++ or another mode)"
    return "allocated in an op and kept after it; no tensor was seen on it"


def _roles(capture: Capture) -> dict[int, tuple[str, str]]:
    """Return, per storage, its strongest role and name: parameter, buffer, optimizer state, gradient, input."""
    strength = {
        role: rank
        for rank, role in enumerate(("parameter", "buffer", "optimizer state", "gradient", "input"))
    }
    rows = capture.tables["roles"]
    found: dict[int, tuple[str, str]] = {}
    for storage, role, name in zip(
        rows["storage"].tolist(), rows["role"].tolist(), capture.text(rows["name"]), strict=True
    ):
        known = found.get(storage)
        if known is None or strength[ROLES[role]] < strength[known[0]]:
            found[storage] = (ROLES[role], name)
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
