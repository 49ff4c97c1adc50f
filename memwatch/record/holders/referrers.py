"""Get from gc the referrers of storages that no search from a variable has found.

If gc shows no referrer, the holder is a value of an evaluation stack or an owner in C++. Reference counts decide
which. The address of its memory may identify an owner in C++, such as a DLPack capsule.
"""

from __future__ import annotations

import gc
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from memwatch.heap.c_held import memory_of
from memwatch.heap.capsules import capsule_address
from memwatch.heap.paths import name_chain
from memwatch.heap.referrer_search import (
    in_variables,
    living_tensors,
    referrer_paths,
    suspended_calls,
    young_objects,
)
from memwatch.heap.roots import running
from memwatch.heap.vertices import vertex_of
from memwatch.kinds.edges import Edge, EdgeKind
from memwatch.record.clock import ticks
from memwatch.record.holders.state import Told, function_of
from memwatch.record.tables.storages import address_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from memwatch.heap.referrer_search import Path
    from memwatch.heap.shapes import Chain
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


# Name the holder of a DLPack capsule that owns memory of a tensor, such as numpy's `from_dlpack` makes.
#
# The capsule refers to the tensor in C++. The address of its memory shows which tensor it is.
C_CODE = (Edge(EdgeKind.C_CODE),)
"""The path to a tensor that only C++ holds."""


class Capsules:
    """The capsules that a deep search met. Each is read when its memory is needed, and named if it owns the memory.

    Args:
        chains: the paths to them. They are the program's objects, so a query to gc must know them as memwatch's.
    """

    def __init__(self, chains: Sequence[Chain]) -> None:
        self._chains = chains

    @cached_property
    def _addresses(self) -> list[int | None]:
        return [capsule_address(chain[-1]) for chain in self._chains]

    @property
    def ids(self) -> set[int]:
        """`id` of the objects here that hold the program's objects."""
        return {id(self._chains), *map(id, self._chains)}

    def told_of(self, memory: range, state: SamplingState) -> list[Told]:
        """Return the paths to the capsules that own memory at some addresses; where there are none, that C++ has it.

        Args:
            memory: the addresses.
            state: numbers the paths.
        """
        owners = [
            chain
            for chain, address in zip(self._chains, self._addresses, strict=True)
            if address is not None and address in memory
        ]
        if not owners:
            return [Told(state.paths(C_CODE), None, True)]
        shared = (Edge(EdgeKind.SHARED_MEMORY, owner=vertex_of(owners[0][-1])),)
        return [
            Told(state.paths((*name_chain(chain), *shared)), function_of(chain[0]), True) for chain in owners
        ]


def look_at_capsules(state: SamplingState, capsules: Capsules) -> None:
    """Search again for holders of storages that only C++ held at an earlier sample.

    An array may have been dropped or moved since.
    """
    missing = set().union(*state.unnamed.values())
    for number, memory in list(state.shared.items()):
        told = state.told.get(number)
        if number in missing and told and told[0].on_stack:
            state.told[number] = capsules.told_of(memory, state)
        else:
            del state.shared[number]  # a variable has it again, or it is gone
