"""The objects that the roots of a program reach past legitimate holders. Each search runs on first use."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from memwatch.heap.search import search
from memwatch.leaks.excuses import exempt_edges
from memwatch.leaks.known_retainers import NO_STATE, state_of, state_storages

if TYPE_CHECKING:
    from collections.abc import Collection

    from memwatch.heap.search import Tree
    from memwatch.heap.snapshot import Snapshot
    from memwatch.leaks.excuses import Exemptions
    from memwatch.leaks.known_retainers import Positions, Replaced


class Reached:
    """The objects that some roots reach. Each search covers the whole heap, so it runs on first use."""

    def __init__(self, snapshot: Snapshot, exempt: Exemptions) -> None:
        self._snapshot = snapshot
        self._exempt = exempt
        self._own = exempt_edges(snapshot, exempt)
        self._state = state_of(snapshot) if exempt.state else NO_STATE

    @cached_property
    def past_state(self) -> Tree:
        """The objects that the program's roots reach past legitimate holders.

        A parameter does not leak, but objects behind it may: a graph behind its gradient, its attributes.
        """
        return self._from_program(self._own | self._state.edges)

    @cached_property
    def through_state(self) -> Tree:
        """The program's roots, through the state of models too, but not from the optimizers that step them."""
        state = self._state
        return self._from_program(self._own | state.optimizers) if state.edges else self.past_state

    @cached_property
    def legitimate(self) -> set[int]:
        """The storages of the state of models."""
        return state_storages(self._snapshot, self._state.edges)

    @property
    def replaced(self) -> list[Replaced]:
        """The parameters that optimizers alone keep."""
        return self._state.replaced

    @cached_property
    def everyone(self) -> Tree:
        """The objects that all roots reach, including those of the test runner and of the caller."""
        exempt = self._snapshot.positions(self._exempt.objects)
        return search(self._snapshot, [*self._snapshot.root_groups(runner=True), exempt])

    def released_with_names(self) -> set[int]:
        """Return the ids of the storages that nothing but the names of the block keeps alive."""
        if not self._own:
            return set()
        snapshot = self._snapshot
        caller = snapshot.positions(self._exempt.objects)
        others = search(snapshot, [*snapshot.root_groups(runner=True), caller], cut=self._own)
        named = search(snapshot, [[value for _, value in self._own]])
        places = ((id(storage), snapshot.position(storage)) for storage in snapshot.storages())
        return {key for key, place in places if named.reaches(place) and not others.reaches(place)}

    def without(self, cut: Positions) -> Tree:
        """Return what the program's roots reach past what is legitimate and past some references."""
        return self._from_program(self._own | self._state.edges | cut)

    def beside(self, containers: Collection[int]) -> Tree:
        """Return what the program's roots reach past what is legitimate, and by no way through some containers."""
        return self._from_program(self._own | self._state.edges, containers)

    def _from_program(self, cut: Positions, containers: Collection[int] = ()) -> Tree:
        snapshot = self._snapshot
        closed = snapshot.barriers().union(containers)
        return search(snapshot, snapshot.root_groups(), closed=closed, cut=cut)
