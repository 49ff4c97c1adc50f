"""Objects that all keep each other alive, and the loops of references among them, each looked for once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

_MOST_LOOPS: Final = 16
"""Loops told apart among objects that all keep each other alive; what hangs on them is told by one of these."""


class Component:
    """Objects each of which leads to every other. Any loop through one of them consists of these objects.

    Args:
        members: the objects, as positions.
        references: the references among them, each as owner and target, in the order in which to try them.
    """

    def __init__(self, members: Iterable[int], references: Iterable[tuple[int, int]]) -> None:
        self._following: dict[int, list[int]] = {member: [] for member in members}
        for owner, target in references:
            self._following[owner].append(target)
        self._seen = KnownLoops()
        self._unseen = KnownLoops()

    def known(self, *, unseen: bool) -> KnownLoops:
        """Return the loops found so far; on request those through a reference that gc does not see."""
        return self._unseen if unseen else self._seen

    def references(self) -> Iterator[tuple[int, int]]:
        """Yield the references among the objects."""
        for owner, targets in self._following.items():
            yield from ((owner, target) for target in targets)

    def places(self) -> Iterable[int]:
        """Return the objects."""
        return self._following.keys()

    def __len__(self) -> int:
        return len(self._following)

    @property
    def is_one_loop(self) -> bool:
        """Whether there is one loop among the objects and no other."""
        return all(len(targets) == 1 for targets in self._following.values())

    def loop_without(
        self,
        removed: Container[tuple[int, int]],
        preferred: Iterable[int],
        *,
        through: Iterable[tuple[int, int]] | None = None,
    ) -> list[int]:
        """Return a loop that remains without some references, with its start repeated at the end, or an empty list.

        Args:
            removed: the references, each as owner and target.
            preferred: objects to start at if they are in a loop: the objects of an earlier loop.
            through: references of which the loop must contain one; any loop will do by default.
        """
        import networkx as nx

        left = Component(self._following, (each for each in self.references() if each not in removed))
        graph = nx.DiGraph(left.references())
        members: dict[int, int] = {}
        for number, places in enumerate(nx.strongly_connected_components(graph)):
            if len(places) > 1 or all(graph.has_edge(place, place) for place in places):
                members.update(dict.fromkeys(places, number))
        if through is not None:
            ends = (each for each in through if each not in removed)
            inside = ((a, b) for a, b in ends if a in members and members[a] == members.get(b))
            return next((left.shortest_loop(owner, target) for owner, target in inside), [])
        start = next((place for place in preferred if place in members), min(members, default=None))
        return [] if start is None else left.shortest_loop(start)

    def shortest_loop(self, start: int, second: int | None = None) -> list[int]:
        """Return the shortest loop from an object, by way of a second one if given; its start repeated at the end."""
        following = self._following[start] if second is None else [second]
        if start in following:
            return [start, start]
        towards = dict.fromkeys(following, start)
        front = list(towards)
        while front:
            fresh: dict[int, int] = {}
            for node in front:
                for target in self._following[node]:
                    if target == start:
                        return [start, *_back(towards, node, start), start]
                    if target not in towards and target not in fresh:
                        fresh[target] = node
            towards.update(fresh)
            front = list(fresh)
        return []


class KnownLoops:
    """The loops that were found among some objects.

    A loop that passes through an object keeps it alive, so none is looked for from there again.

    Attributes:
        rings: the loops, each as positions, the first one not repeated.
    """

    def __init__(self) -> None:
        self.rings: list[list[int]] = []
        self._by_place: dict[tuple[int, ...], int] = {}
        self._chain_to: Callable[[int], list[int]] | None = None

    def add(self, ring: list[int]) -> int:
        """Take a loop and return its number."""
        number = len(self.rings)
        self.rings.append(ring)
        for place, following in zip(ring, [*ring[1:], ring[0]], strict=True):
            self._by_place.setdefault((place,), number)
            self._by_place.setdefault((place, following), number)
        return number

    def through(self, *places: int) -> int | None:
        """Return the number of a loop through an object, or through a reference given as owner and target."""
        return self._by_place.get(places)

    def are_enough(self) -> bool:
        """Return True if no other loop is worth its search."""
        return len(self.rings) >= _MOST_LOOPS

    def chain_to(self, place: int, search: Callable[[list[int]], Callable[[int], list[int]]]) -> list[int]:
        """Return the shortest chain from a known loop to an object; the search is made once."""
        if self._chain_to is None:
            self._chain_to = search([place for ring in self.rings for place in ring])
        return self._chain_to(place)


def _back(towards: dict[int, int], node: int, start: int) -> list[int]:
    way = [node]
    while towards[way[-1]] != start:
        way.append(towards[way[-1]])
    return way[::-1]
