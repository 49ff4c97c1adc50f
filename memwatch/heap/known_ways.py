"""Paths that searches found, to follow again: from a variable of a call along attributes, keys and positions.

A tensor that a program replaces in each pass, such as a cache, is a new tensor in a known place. To read that place
takes a thousandth of a search. The result counts as seen now, because every reference of the path is read anew. No
object is kept.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from memwatch.heap.class_checks import class_ids, is_a
from memwatch.heap.names import instance_dict
from memwatch.heap.paths import name_chain
from memwatch.heap.references import copied_items, position_in
from memwatch.heap.roots import RootKind
from memwatch.heap.tensors import is_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memwatch.heap.references import Chain
    from memwatch.heap.roots import Root
    from memwatch.kinds.edges import Edge

_MAX_WAYS: Final = 256
"""Ways that a `KnownWays` remembers. A guess."""
_PLAIN_KEYS: Final = class_ids(str, int)
_SEQUENCES: Final = (tuple, list, deque)
_ATTRIBUTE, _KEY, _PLACE = range(3)
_Step = tuple[int, Any]
_Start = tuple[Any, ...]


class KnownWays:
    """The ways to tensors that searches found."""

    def __init__(self) -> None:
        self._edges: dict[_Start | None, dict[tuple[_Step, ...], tuple[Edge, ...]]] = {}
        self._count = 0

    def learn(self, chain: Chain) -> None:
        """Remember the path along a chain of objects from a running call, if names or positions can repeat it.

        Args:
            chain: a root and then objects; each refers to the next.
        """
        start = _start_of(chain[0])
        if start is None or self._count >= _MAX_WAYS:
            return
        steps, ways = _steps_along(chain), self._edges.setdefault(start, {})
        if steps and steps not in ways:
            ways[steps] = name_chain(chain)[1:]
            self._count += 1

    def tensors(self, root: Root) -> Iterator[tuple[Any, tuple[Edge, ...]]]:
        """Follow the ways from a running call, and yield each tensor at an end with the references to it."""
        ways = self._edges.get(_start_of(root)) if self._edges else None
        if not ways:
            return
        variables = {held.name: held for held in root.entries}
        for (first, *rest), edges in ways.items():
            held = variables.get(first[1])
            value = None if held is None else held.value
            for how, key in rest:
                value = None if value is None else _after(value, how, key)
            if held is not None and is_tensor(value):
                yield value, (held.edge, *edges)


def _start_of(root: Root) -> _Start | None:
    """Return a key of a call, or of the namespace of a running file; None for other roots."""
    owner = root.entries[0].owner if root.entries else None
    if owner is None or root.kind not in (RootKind.FRAME, RootKind.NAMESPACE):
        return None
    inner = owner.inner.name if owner.inner else ""
    return owner.name, owner.file, owner.thread, inner, root.kind is RootKind.FRAME


def _steps_along(chain: Chain) -> tuple[_Step, ...]:
    """Return the steps from the variables of a root to the end of a chain, or an empty tuple if one has no name."""
    name = next((held.name for held in chain[0].entries if held.value is chain[1]), None)
    steps: list[_Step] = [(_KEY, name)]
    at = 1
    while at < len(chain) - 1:
        found = _step(chain, at)
        if found is None:
            return ()
        step, covered = found
        steps.append(step)
        at += covered
    return tuple(steps)


def _step(chain: Chain, at: int) -> tuple[_Step, int] | None:
    """Return the step from an object of a chain, and the number of references it covers; None if nothing names it."""
    parent, child = chain[at], chain[at + 1]
    if child is instance_dict(parent):
        return _keyed(_ATTRIBUTE, child, chain[at + 2], 2) if at + 2 < len(chain) else None
    if is_a(parent, dict):
        return _keyed(_KEY, parent, child, 1)
    for kind in _SEQUENCES:
        if is_a(parent, kind):
            place = position_in(parent, kind, child)
            return None if place is None else ((_PLACE, place), 1)
    return None


def _keyed(how: int, table: Any, value: Any, covered: int) -> tuple[_Step, int] | None:
    for key, held in copied_items(table, dict.items):
        if held is value:
            return ((how, key), covered) if id(type(key)) in _PLAIN_KEYS else None
    return None


def _after(value: Any, how: int, key: Any) -> Any:
    """Go one step; return None where it leads nowhere now."""
    if how == _ATTRIBUTE:
        return _looked_up(instance_dict(value) or {}, key)
    if how == _KEY:
        return _looked_up(value, key) if is_a(value, dict) else None
    for kind in _SEQUENCES:
        if is_a(value, kind):
            return kind.__getitem__(value, key) if key < kind.__len__(value) else None
    return None


def _looked_up(table: Any, key: Any) -> Any:
    """Return the value of a key. Return None if the key is missing, or if any key is not a plain text or number.

    A lookup calls `__eq__` of a key with an equal hash, which may be the program's code.
    """
    return dict.get(table, key) if _PLAIN_KEYS.issuperset(map(id, map(type, dict.keys(table)))) else None
