"""Categories: what a piece of memory is for, and the rule that says so.

Rules are tried in order; the first that applies decides. Temporaries of an optimizer's step are
temporaries, not optimizer state: only what the optimizer keeps in its state is that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.analysis.lives import BASELINE, EXTERNAL, UNOBSERVED, WORKSPACE, Lives
from memwatch.capture.schema import ACCESSES, NONE, PHASES, ROLES

if TYPE_CHECKING:
    from memwatch.capture import Capture
    from memwatch.capture.packed import IntArray

_ROLE_RULES = {
    "parameter": "it is a parameter of a module or of an optimizer",
    "buffer": "it is a buffer of a module",
    "optimizer state": "the optimizer keeps it in its state",
    "gradient": "it was the .grad of a parameter",
    "input": "it was an argument of the outermost module call",
}


def categorise(capture: Capture, lives: Lives) -> tuple[list[str], list[str], list[str]]:
    """Assign every life its category.

    Returns:
        Categories, rules and names (empty where no role gives one), one each per life.
    """
    count = len(lives.nbytes)
    category, rule, name = [""] * count, [""] * count, [""] * count
    roles = _roles(capture, lives.named)
    saved = _saved(capture, lives.named)
    crosses = _crosses_to_backward(capture, lives.named)
    for life in range(count):
        storage = int(lives.storage[life])
        origin = int(lives.origin[life])
        if storage != NONE and storage in roles:
            category[life], name[life] = roles[storage]
            rule[life] = _ROLE_RULES[category[life]]
        elif origin == WORKSPACE:
            category[life], rule[life] = "workspace", "allocated and freed within one op; no tensor names it"
        elif storage == NONE:
            category[life], rule[life] = "unknown", _unnamed_rule(int(lives.op[life]))
        elif saved[storage]:
            category[life], rule[life] = "activation", "autograd saved it for backward"
        elif crosses[storage]:
            category[life], rule[life] = "activation", "made in forward and read by a backward op"
        elif origin in (BASELINE, EXTERNAL):
            category[life], rule[life] = (
                "input",
                "it was there before, made outside the block or the allocator",
            )
        elif origin == UNOBSERVED and lives.op[life] == NONE:
            category[life], rule[life] = "temporary", "made where no op was recorded, used by one later"
        else:
            category[life], rule[life] = "temporary", "made by an op, in no other role"
    return category, rule, name


def _unnamed_rule(op: int) -> str:
    if op == NONE:
        return "allocated outside every recorded op (compiled code, C++ or another mode)"
    return "allocated in an op and kept after it; no tensor was seen on it"


def _roles(capture: Capture, named: int) -> dict[int, tuple[str, str]]:
    """Give, per storage, its strongest role and name: parameter, buffer, optimizer state, gradient, input."""
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
    """Mark the storages that a forward op made and a backward op read."""
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
