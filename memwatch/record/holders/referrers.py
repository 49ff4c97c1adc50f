"""Get from gc the referrers of storages that no search from a variable has found.

If gc shows no referrer, the holder is a value of an evaluation stack or an owner in C++. Reference counts decide
which. The address of its memory may identify an owner in C++, such as a DLPack capsule.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, Final

from memwatch.heap.referrer_search import (
    in_variables,
    living_tensors,
    referrer_paths,
    suspended_calls,
    young_objects,
)
from memwatch.heap.search_roots import running
from memwatch.heap.shared_memory import memory_of
from memwatch.kinds.edges import EdgeKind
from memwatch.record.clock import ticks
from memwatch.record.holders.capsules import C_CODE, Capsules
from memwatch.record.holders.state import Told
from memwatch.record.tables.storages import address_of

if TYPE_CHECKING:
    from types import FrameType

    from memwatch.heap.referrer_search import Path
    from memwatch.record.holders.state import SamplingState
    from memwatch.record.tables.storages import WatchedStorage

_CONTAINERS: Final = ("list", "deque", "dict", "set")
"""Types of objects that seldom stay on an evaluation stack: an argument of a call is gone by the next sample."""


def ask_who_refers(
    state: SamplingState, fresh: dict[int, WatchedStorage], capsules: Capsules, frame: FrameType | None
) -> None:
    """Search for the referrers of storages that the deep search did not find. Search young objects first.

    Args:
        state: the state that samples share; it gets the results.
        fresh: the storages, by address.
        capsules: the capsules that the search met.
        frame: the innermost call.
    """
    left = {key: alive.number for key, alive in fresh.items() if alive.number not in state.told}
    if not left:
        return
    left = dict(sorted(left.items(), key=lambda item: -fresh[item[0]].nbytes))
    state.told.update((number, []) for number in left.values())
    variables = in_variables(running(frame))  # first: a list of all objects holds the frames' dictionaries
    objects = young_objects()
    tensors = living_tensors(left, address_of, objects)
    _tell(state, referrer_paths(tensors, variables, objects, ours=capsules.ids), tensors, capsules)
    old = {key: number for key, number in left.items() if number not in tensors}
    objects.clear()
    tensors.clear()
    if old and state.costs.may_scan_heap():
        start = ticks()
        objects = gc.get_objects()
        tensors = living_tensors(old, address_of, objects)
        objects.clear()  # it holds every container there is, perhaps one of this call's own
        _tell(state, referrer_paths(tensors, variables, ours=capsules.ids), tensors, capsules)
        state.costs.heap_scanned(ticks() - start)


def ask_again_who_refers(state: SamplingState, again: dict[int, int], frame: FrameType | None) -> None:
    """Search again for the owner of a list that holds an unnamed storage: it may be a suspended call.

    Args:
        state: the state that samples share.
        again: the storages' numbers, by address.
        frame: the innermost call.
    """
    if not state.costs.may_scan_heap():
        return
    start = ticks()
    for number in again.values():
        state.told[number] = [told._replace(in_container=False) for told in state.told[number]]
    variables = in_variables(running(frame))  # first: see `ask_who_refers`
    objects = young_objects()
    tensors = living_tensors(again, address_of, objects)
    found = referrer_paths(tensors, variables, objects + suspended_calls())
    _tell(state, found, tensors, Capsules(()), is_last=True)
    state.costs.heap_scanned(ticks() - start)


def _tell(
    state: SamplingState, found: dict[int, Path], tensors: dict[int, list[Any]], capsules: Capsules,
    *, is_last: bool = False,
) -> None:  # fmt: skip
    for number, edges in found.items():
        on_stack = edges[0].kind is EdgeKind.EVALUATION_STACK
        if edges == C_CODE:
            state.shared[number] = memory_of(tensors[number][0])
            state.told[number] = capsules.told_of(state.shared[number], state)
        else:
            in_container = on_stack and edges[0].name in _CONTAINERS and not is_last
            state.told[number] = [Told(state.paths(edges), None, on_stack, in_container)]
        for told in state.told[number]:
            state.append(number, told.path)
