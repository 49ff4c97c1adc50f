"""Name the holder of a DLPack capsule that owns memory of a tensor, such as numpy's `from_dlpack` makes.

The capsule refers to the tensor in C++. The address of its memory shows which tensor it is.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from memwatch.heap.capsules import capsule_address
from memwatch.heap.paths import name_chain
from memwatch.heap.vertices import vertex_of
from memwatch.kinds.edges import Edge, EdgeKind
from memwatch.record.holders.state import Told, function_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.heap.references import Chain
    from memwatch.record.holders.state import SamplingState

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
