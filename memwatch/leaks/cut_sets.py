"""Find the references to cut so that no loop is left among objects that all lead to one another.

Two loops may share an object: a trainer has two loops, and each of them has the trainer. To cut one reference then
frees nothing. One line of the program may make many references, so what counts is how many edits it takes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from memwatch.kinds.edges import EdgeKind
from memwatch.leaks.cut import edit_of, edit_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

    from memwatch.heap.paths import Step
    from memwatch.leaks.components import Component

MOST_OBJECTS: Final = 5_000
"""In a larger group of objects that refer to each other only the nearest loop is reported. Lightning has about 600."""
_MOST_RINGS: Final = 32
"""The most loops that are searched. Lightning's trainer has more, so its cuts are reported as the first of several."""


class CutSet(NamedTuple):
    """The references that end the loops among some objects.

    Attributes:
        cuts: one reference for each edit, the one that ends most loops first.
        main: the loop of the first reference.
        is_complete: False if further loops were not searched.
    """

    cuts: tuple[Step, ...]
    main: list[Step]
    is_complete: bool

    @property
    def edits(self) -> frozenset[Hashable]:
        """The edits that the references stand for."""
        return frozenset(edit_of(step.edge) for step in self.cuts)


@dataclass(slots=True)
class Ring:
    """One loop: its positions, the first one repeated at the end, and its references."""

    positions: list[int]
    steps: list[Step]

    def editable(self) -> dict[Hashable, Step]:
        """Return the references that are as easy to edit as any of this loop, by the edit each stands for."""
        best = min(map(edit_rank, self.steps))
        return {edit_of(step.edge): step for step in self.steps if edit_rank(step) == best}

    def references(self, edits: Collection[Hashable]) -> Iterable[tuple[int, int]]:
        """Yield the references that some edits remove, each as owner and target."""
        for step in self.steps:
            if edit_of(step.edge) in edits:
                # the dictionary has the value, and several functions may have one cell
                is_cell = step.edge.kind is EdgeKind.CLOSURE_CELL and step.end - step.start > 1
                end = step.end - is_cell
                yield self.positions[end - 1], self.positions[end]


def find_cuts(
    component: Component,
    first: list[int],
    name: Callable[[list[int]], Ring],
    *,
    through: Collection[tuple[int, int]] | None = None,
    known: Sequence[frozenset[Hashable]] = (),
) -> CutSet:
    """Find the fewest edits that end all loops of a component, as far as a few loops show.

    Args:
        component: the objects.
        first: one loop among them, as positions, the first one repeated at the end.
        name: returns the references of a loop.
        through: only loops with one of these references count; by default all loops count.
        known: edits that ended the loops of other components, tried first, so that equal objects have equal cuts.
    """
    rings = [name(first)]
    while True:
        edits = _hitting(rings, known)
        removed = {reference for ring in rings for reference in ring.references(edits)}
        loop = component.loop_without(removed, first, through=through)
        if not loop or len(rings) >= _MOST_RINGS:
            return _cut_set(rings, edits, is_complete=not loop)
        rings.append(name(loop))


def _hitting(rings: Sequence[Ring], known: Iterable[frozenset[Hashable]]) -> set[Hashable]:
    """Return a small set of edits that contains one edit of each loop."""
    for edits in known:
        hits = [{edit_of(step.edge) for step in ring.steps} & edits for ring in rings]
        if all(hits):
            return set().union(*hits)
    todo = [ring.editable() for ring in rings]
    chosen: set[Hashable] = set()
    while todo:
        counts = Counter(edit for ring in todo for edit in ring)
        steps = {edit: step for ring in todo for edit, step in ring.items()}
        best = min(counts, key=lambda edit: (-counts[edit], edit_rank(steps[edit]), repr(edit)))
        chosen.add(best)
        todo = [ring for ring in todo if best not in ring]
    return chosen


def _cut_set(rings: Sequence[Ring], edits: Collection[Hashable], *, is_complete: bool) -> CutSet:
    found: dict[Hashable, list[tuple[Step, Ring]]] = {}
    for ring in rings:
        for step in ring.steps:
            if edit_of(step.edge) in edits:
                found.setdefault(edit_of(step.edge), []).append((step, ring))
    order = sorted(found, key=lambda edit: (-len(found[edit]), edit_rank(found[edit][0][0]), repr(edit)))
    main = min((ring for _, ring in found[order[0]]), key=lambda ring: len(ring.steps))
    return CutSet(tuple(found[edit][0][0] for edit in order), main.steps, is_complete)
