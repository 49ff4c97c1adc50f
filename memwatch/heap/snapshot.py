"""The reference graph of the whole process at one instant, as arrays that are searched in one sweep."""

from __future__ import annotations

import gc
import sys
from itertools import chain
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.heap.autograd import autograd_edges
from memwatch.heap.roots import Root, find_roots, is_own_module, is_runner_module
from memwatch.heap.tensors import TypeFilter, is_storage, quiet

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

UNREACHED: Final = -1


class Snapshot:
    """Who refers to whom: gc's edges, autograd's C++ edges and the roots.

    Objects are addressed by their position. The snapshot holds every object it lists, so it must be closed soon
    (it is a context manager); while it is open nothing the program drops is freed.

    Args:
        extra: objects to list even if gc does not show them.
    """

    def __init__(self, extra: Iterable[object] = ()) -> None:
        self.objects: list[Any] = gc.get_objects()
        self.objects += _frozen(self.objects)
        self.objects += extra
        self._known = {id(obj) for obj in self.objects}
        self.roots: list[Root] = find_roots(self.objects)
        self.labels: dict[tuple[int, int], tuple[str, bool]] = {}
        self.first_gc_end = len(self.objects)
        hidden = self._autograd()
        self.first_root = len(self.objects)
        self.objects += self.roots
        self._build(hidden)

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop every object."""
        for root in self.roots:
            root.entries.clear()
        self.roots.clear()
        self.objects.clear()
        self.labels.clear()
        self._known.clear()

    def _autograd(self) -> list[tuple[object, object]]:
        """Follow the C++ edges from all tensors and nodes, adding the objects gc does not list."""
        wanted = TypeFilter()
        todo = [obj for obj in self.objects if wanted(obj) and not is_storage(obj)]
        edges: list[tuple[object, object]] = []
        with quiet():
            while todo:
                parent = todo.pop()
                for label, child, hidden in autograd_edges(parent):
                    edges.append((parent, child))
                    self.labels.setdefault((id(parent), id(child)), (label, hidden))
                    if id(child) not in self._known:
                        self._known.add(id(child))
                        self.objects.append(child)
                        todo.append(child) if wanted(child) and not is_storage(child) else None
        return edges

    def _build(self, hidden: list[tuple[object, object]]) -> None:
        objects = self.objects
        referents = gc.get_referents
        counts = np.zeros(len(objects), dtype=np.int64)
        flat: list[int] = []
        for position in range(self.first_root):
            children = referents(objects[position])
            counts[position] = len(children)
            flat.extend(map(id, children))
        for position in range(self.first_root, len(objects)):
            entries = objects[position].entries
            counts[position] = len(entries)
            flat.extend(id(child) for _, child in entries)
        ids = np.fromiter(map(id, objects), dtype=np.int64, count=len(objects))
        self._order = np.argsort(ids, kind="stable")
        self._ids = ids[self._order]
        parents = np.repeat(np.arange(len(objects)), counts)
        children_of = np.array(flat, dtype=np.int64)
        if hidden:
            parents = np.concatenate([parents, self._find(np.array([id(p) for p, _ in hidden], dtype=np.int64))])
            children_of = np.concatenate([children_of, np.array([id(c) for _, c in hidden], dtype=np.int64)])
        targets = self._find(children_of)
        kept = targets != UNREACHED
        self.parents, self.children = _sorted_edges(parents[kept], targets[kept])
        self.starts = np.searchsorted(self.parents, np.arange(len(objects) + 1))

    def _find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        spots = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[spots] == ids, self._order[spots], UNREACHED)

    def position(self, obj: object) -> int:
        """Return the position of an object, or -1."""
        return int(self._find(np.array([id(obj)], dtype=np.int64))[0])

    def label(self, parent: int, child: int) -> tuple[str, bool] | None:
        """Return the words of a C++ edge and whether gc is blind to it, or None for a Python edge."""
        return self.labels.get((id(self.objects[parent]), id(self.objects[child])))

    def referents(self, position: int) -> NDArray[np.int64]:
        """Return the positions of what one object refers to."""
        return self.children[self.starts[position] : self.starts[position + 1]]

    def reversed(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return ``(starts, referrers)``: the same graph with every edge turned round."""
        order = np.argsort(self.children, kind="stable")
        starts = np.searchsorted(self.children[order], np.arange(len(self.objects) + 1))
        return starts, self.parents[order]

    def root_groups(self, *, runner: bool = False) -> list[list[int]]:
        """Return the positions of the program's roots (or of the test runner's too), the best named first."""
        groups: list[list[int]] = [[], [], []]
        for place, root in enumerate(self.roots):
            if root.runner:
                groups[2].append(self.first_root + place)
            else:
                groups[root.kind not in ("frame", "modules")].append(self.first_root + place)
        return groups if runner else groups[:2]

    def barriers(self) -> set[int]:
        """Return the positions of modules that a search must not enter: memwatch's and the test runner's own."""
        found = set()
        for name, module in list(sys.modules.items()):
            if isinstance(name, str) and (is_own_module(name) or is_runner_module(name)) and type(module) is ModuleType:
                found |= {self.position(module), self.position(module.__dict__)}
        return found - {UNREACHED}


def _sorted_edges(
    parents: NDArray[np.int64], children: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    order = np.argsort(parents, kind="stable")
    return parents[order], children[order]


def _frozen(listed: Sequence[object]) -> list[object]:
    """Find the objects that ``gc.freeze`` took out of gc's lists, by following references."""
    if not gc.get_freeze_count():
        return []
    known = {id(obj) for obj in listed}
    found: list[object] = []
    todo: list[object] = [*sys.modules.values(), *chain(listed)]
    while todo:
        fresh = [obj for obj in gc.get_referents(*todo) if id(obj) not in known and gc.is_tracked(obj)]
        todo = list({id(obj): obj for obj in fresh}.values())
        known.update(map(id, todo))
        found += todo
    return found
