"""One pass alone: which survivors only took the place of what died?

A single pass shows what it made and what it freed, but not where the freed was held. So a tensor that died excuses one
that was made at most as large: first at a holder that replaces its value (a variable, an attribute, a key), where a
smaller one will do, then at one that drops and takes entries, where only one of the same size does.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from memwatch.edges import EdgeKind

if TYPE_CHECKING:
    from memwatch.leaks.diagnose import Diagnosis
    from memwatch.leaks.ledger import Change
    from memwatch.leaks.survivor import Survivor

_REPLACES: Final = frozenset(
    {
        EdgeKind.GLOBAL,
        EdgeKind.ATTRIBUTE,
        EdgeKind.CLASS_ATTRIBUTE,
        EdgeKind.BUFFER,
        EdgeKind.PARAMETER,
        EdgeKind.GRAD,
        EdgeKind.CLOSURE_CELL,
        EdgeKind.CONTEXT_VARIABLE,
        EdgeKind.THREAD_LOCAL,
        EdgeKind.VALUE,
        EdgeKind.LOCAL,
        EdgeKind.ARGUMENT,
    }
)
"""References of which one name has one value."""


def unbalanced(diagnosis: Diagnosis, change: Change) -> list[Survivor]:
    """Return the survivors of a pass that did not take the place of a dead storage.

    What no root reaches took nobody's place. What is exempt has its own places.
    """
    told = {id(survivor.storage) for survivor in diagnosis.survivors}
    dead = Counter(made.size for made in change.died)
    dead -= Counter(made.size for made in change.born if id(made) not in told)
    left: list[Survivor] = []
    for survivor in sorted(diagnosis.retained, key=_replaces, reverse=True):
        if dead[survivor.storage.size] > 0:
            dead[survivor.storage.size] -= 1
        else:
            left.append(survivor)
    left = [survivor for survivor in left if not (_replaces(survivor) and _take_larger(survivor, dead))]
    return left + diagnosis.unreachable


def _replaces(survivor: Survivor) -> bool:
    return survivor.cut is not None and survivor.cut.edge.kind in _REPLACES


def _take_larger(survivor: Survivor, dead: Counter[tuple[str, int]]) -> bool:
    device, nbytes = survivor.storage.size
    larger = [size for size, count in dead.items() if count > 0 and size[0] == device and size[1] > nbytes]
    if not larger:
        return False
    dead[min(larger)] -= 1
    return True
