"""Follow the paths that earlier searches found, without a new search.

A path, here called a way, starts at a variable of a running call. Each step is an attribute, a key or a position.

A program may replace a tensor in each iteration, for example the tensor in a cache. The new tensor lies in the same
place as the old one. To read that place takes a thousandth of the time of a search. Every reference of the way is read
again, so the result is as current as the result of a search. The ways contain names and positions but no objects of the
program.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from memwatch.heap.classes import class_ids, is_a
from memwatch.heap.names import instance_dict
from memwatch.heap.paths import name_chain
from memwatch.heap.roots import RootKind
from memwatch.heap.shapes import copied_items, key_of, ordered_kind, position_in
from memwatch.heap.tensors import is_tensor
from memwatch.kinds.edges import EdgeKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from memwatch.heap.roots import Root
    from memwatch.heap.shapes import Chain
    from memwatch.kinds.edges import Edge

_MAX_WAYS: Final = 256
"""Ways that a `KnownWays` remembers. A guess."""
_MAX_ITEMS: Final = 128
"""Items of a list or dictionary that are read. A guess: a cache has one for each layer."""
_PLAIN_KEYS: Final = class_ids(str, int)
_ATTRIBUTE, _KEY, _PLACE, _EACH = range(4)
"""The kinds of steps: to an attribute, a value of a dictionary, an item of a list, or all items."""
_Step = tuple[int, Any]
"""The kind of a step, and the name, key or position; None for all items."""
_Steps = tuple[_Step, ...]
_Start = tuple[Any, ...]
"""The key of a running call, from `_start_of`. It begins with the function and the file."""


class KnownWays:
    """The ways to tensors that searches found.

    A way through an item of a list also goes through the other items that have the class of the first item.
    """

    def __init__(self) -> None:
        # by call and variable: the steps after the variable, with the references that reports name
        self._edges: dict[_Start | None, dict[str, dict[_Steps, tuple[Edge, ...]]]] = {}
        self._names: dict[tuple[str, str], set[str]] = {}
        self._count = 0

    def learn(self, chain: Chain) -> None:
        """Remember the way along a chain of objects.

        The chain must start at a running call, and each reference must have a name, key or position. Other chains are
        ignored.

        Args:
            chain: a root, then objects. Each object refers to the next one.
        """
        start = _start_of(chain[0])
        if start is None or self._count >= _MAX_WAYS:
            return
        steps = _steps_along(chain)
        if not steps:
            return
        name, rest = steps[0][1], steps[1:]
        ways = self._edges.setdefault(start, {}).setdefault(name, {})
        if rest not in ways:
            edges = name_chain(chain)[1:]
            ways[rest] = edges
            # if each step has one reference, `_with_positions` can change the position in it
            if len(edges) == len(rest):
                del ways[rest]
                ways.setdefault(tuple(map(_of_each, rest, edges)), edges)
            self._names.setdefault((start[1], start[0]), set()).add(name)
            self._count += 1

    def names_in(self, file: str, function: str) -> Collection[str]:
        """Return the variables of a function at which ways start."""
        return self._names.get((file, function), ())

    def tensors(
        self, root: Root, met: set[tuple[int, _Steps]] | None = None
    ) -> Iterator[tuple[Any, tuple[Edge, ...]]]:
        """Follow the ways from a running call. Yield the tensor at each end, with the references that lead to it.

        Args:
            root: the call.
            met: pairs of the `id` of an object and the steps that follow it. A pair in this set is not followed again.
                This method adds the pairs that it meets.
        """
        ways = self._edges.get(_start_of(root)) if self._edges else None
        if not ways:
            return
        met = set() if met is None else met
        for held in root.entries:
            for rest, edges in ways.get(held.name, {}).items() if held.name is not None else ():
                for value, positions in _ends(held.value, rest, (), met):
                    yield value, (held.edge, *_with_positions(edges, positions))


def _of_each(step: _Step, edge: Edge) -> _Step:
    """Return a step to all items if `step` leads to an item of a list or to a number as key. Else return `step`."""
    how, key = step
    is_item = (how == _PLACE and edge.kind is EdgeKind.ITEM) or (how == _KEY and type(key) is int)
    return (_EACH, None) if is_item else step


def _with_positions(edges: tuple[Edge, ...], positions: tuple[tuple[int, int], ...]) -> tuple[Edge, ...]:
    """Return the references of a way with other positions and keys.

    Args:
        edges: the references.
        positions: pairs: the index of a reference in `edges`, and the position or key of the item that was followed.
    """
    found = list(edges)
    for place, key in positions:
        is_item = found[place].kind is EdgeKind.ITEM
        found[place] = (
            replace(found[place], position=key) if is_item else replace(found[place], name=str(key))
        )
    return tuple(found)


def _ends(
    value: Any,
    rest: _Steps,
    positions: tuple[tuple[int, int], ...],
    met: set[tuple[int, _Steps]],
    place: int = 0,
) -> Iterator[tuple[Any, tuple[tuple[int, int], ...]]]:
    """Yield the tensors at the ends of a way. Each comes with the items that were chosen where the way has `_EACH`.

    Args:
        value: the object to start from.
        rest: the steps that are left.
        positions: the items chosen so far, as `_with_positions` takes them.
        met: as in `KnownWays.tensors`.
        place: number of steps taken so far.
    """
    if (id(value), rest) in met:
        return
    met.add((id(value), rest))
    if not rest:
        if is_tensor(value):
            yield value, positions
        return
    (how, key), *others = rest
    after = tuple(others)
    if how != _EACH:
        held = _after(value, how, key)
        if held is not None:
            yield from _ends(held, after, positions, met, place + 1)
        return
    items = _items_of(value)
    for number, item in items:
        if type(item) is type(items[0][1]):
            yield from _ends(item, after, (*positions, (place, number)), met, place + 1)


def _items_of(value: Any) -> list[tuple[int, Any]]:
    """Return the first items of a list, or the first values of a dictionary with numbers for keys."""
    if is_a(value, dict):
        pairs = copied_items(value, dict.items, _MAX_ITEMS)
        return [(key, held) for key, held in pairs if type(key) is int]
    kind = ordered_kind(value)
    return [] if kind is None else list(enumerate(copied_items(value, kind.__iter__, _MAX_ITEMS)))


def _start_of(root: Root) -> _Start | None:
    """Return a key for a root that is a running call or the namespace of a running file; None for other roots."""
    owner = root.entries[0].owner if root.entries else None
    if owner is None or root.kind not in (RootKind.FRAME, RootKind.NAMESPACE):
        return None
    inner = owner.inner.name if owner.inner else ""
    return owner.name, owner.file, owner.thread, inner, root.kind is RootKind.FRAME


def _steps_along(chain: Chain) -> tuple[_Step, ...]:
    """Return the steps from a variable of the root to the end of a chain.

    Return an empty tuple if a reference has no name, key or position.
    """
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
    """Return the step from an object of a chain, and how many references of the chain it covers.

    An attribute covers two: from the instance to its dictionary, and from the dictionary to the value. Return None if
    the reference lacks a name, key or position.
    """
    parent, child = chain[at], chain[at + 1]
    if child is instance_dict(parent):
        return _keyed(_ATTRIBUTE, child, chain[at + 2], 2) if at + 2 < len(chain) else None
    if is_a(parent, dict):
        return _keyed(_KEY, parent, child, 1)
    kind = ordered_kind(parent)
    place = None if kind is None else position_in(parent, kind, child)
    return None if place is None else ((_PLACE, place), 1)


def _keyed(how: int, table: Any, value: Any, covered: int) -> tuple[_Step, int] | None:
    found, key = key_of(table, value)
    return ((how, key), covered) if found and id(type(key)) in _PLAIN_KEYS else None


def _after(value: Any, how: int, key: Any) -> Any:
    """Return the object after one step from `value`. Return None if the attribute, key or position is gone."""
    if how == _ATTRIBUTE:
        return _looked_up(instance_dict(value) or {}, key)
    if how == _KEY:
        return _looked_up(value, key) if is_a(value, dict) else None
    kind = ordered_kind(value)
    return kind.__getitem__(value, key) if kind is not None and key < kind.__len__(value) else None


def _looked_up(table: Any, key: Any) -> Any:
    """Return the value of a key; None if the key is missing.

    Return None also if the dictionary has a key of another class than `str` and `int`. A lookup may call `__eq__` of
    such a key, which may be the program's code.
    """
    return dict.get(table, key) if _PLAIN_KEYS.issuperset(map(id, map(type, dict.keys(table)))) else None
