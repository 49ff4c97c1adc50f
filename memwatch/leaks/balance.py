"""For a single pass: find the survivors that only replaced dead tensors.

A single pass shows the tensors that it made and freed, but not the holders of the freed ones. So each dead tensor
excuses one new tensor. A tensor of the same size comes first. Among these, a tensor at a holder with one value (a
variable, an attribute, a key) comes before a tensor at a holder with many. A tensor that was made from a smaller dead
one, as by `torch.cat`, grows. It is never excused, and the smaller one excuses nothing else.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from memwatch.edges import EdgeKind
from memwatch.leaks.second_holder import LATEST, is_latest

if TYPE_CHECKING:
    from memwatch.leaks.diagnose import Diagnosis
    from memwatch.leaks.ledger import Change
    from memwatch.leaks.survivor import Survivor

_REPLACES: Final = LATEST | {EdgeKind.VALUE, EdgeKind.SUBMODULE}


def unbalanced(diagnosis: Diagnosis, change: Change) -> list[Survivor]:
    """Return the survivors of a pass that did not replace a dead storage.

    A storage that no root reaches replaced nothing. Nor did a replaced parameter, which is older than the pass. Exempt
    storages have their own places, or new ones: a window that fills drops nothing. So values of one name are excused
    before them.
    """
    told = {id(survivor.storage) for survivor in diagnosis.survivors}
    dead = Counter(made.size for made in change.died)
    kept = [each for each in diagnosis.retained if each.storage.grew or each.is_replaced]
    dead -= Counter((made.device, made.replaced_bytes) for made in change.born if made.grew)
    left = [each for each in diagnosis.retained if not (each.storage.grew or each.is_replaced)]
    left = [
        survivor for survivor in left if not (is_latest(survivor) and _take(dead, survivor, exactly=True))
    ]
    dead -= Counter(made.size for made in change.born if id(made) not in told)
    left.sort(key=_replaces, reverse=True)
    left = [survivor for survivor in left if not _take(dead, survivor, exactly=True)]
    left = [survivor for survivor in left if not (_has_entries(survivor) and _take(dead, survivor))]
    return kept + left + diagnosis.unreachable


def _replaces(survivor: Survivor) -> bool:
    return survivor.cut is not None and survivor.cut.edge.kind in _REPLACES


def _has_entries(survivor: Survivor) -> bool:
    return _replaces(survivor) or (survivor.cut is not None and survivor.cut.edge.kind is EdgeKind.ITEM)


def _take(dead: Counter[tuple[str, int]], survivor: Survivor, *, exactly: bool = False) -> bool:
    """Use up one of the dead for a survivor on the same device, if there is one."""
    device, nbytes = survivor.storage.size
    fitting = [
        size
        for size, count in dead.items()
        if count > 0 and size[0] == device and (not exactly or size[1] == nbytes)
    ]
    if fitting:
        dead[min(fitting, key=lambda size: abs(size[1] - nbytes))] -= 1
    return bool(fitting)
