"""A small graph of what the running calls can reach quickly: locals, containers, models, autograd."""

from __future__ import annotations

import gc
from collections import deque
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch.edges import Edge, EdgeKind, Vertex, VertexKind
from memwatch.heap.autograd import NativeEdge, autograd_edges
from memwatch.heap.frames import running_frames
from memwatch.heap.roots import Held, Root, RootKind, frame_roots
from memwatch.heap.tensors import TypeFilter, is_storage, is_tensor, mro_of, quiet, storage_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_NOT_ENTERED: Final = (ModuleType, type)


class Nearby:
    """Breadth-first search from the running calls, stopped after a number of objects.

    Has ``objects`` and ``native_edge`` like :class:`memwatch.heap.snapshot.Snapshot`, so paths are named the
    same way.

    Args:
        wanted: ``id`` of the storages looked for; the search ends when all are found.
        max_objects: the most objects to look at.
        ignore: ``id`` of objects not looked into.
    """

    def __init__(self, wanted: Iterable[int], max_objects: int, ignore: Collection[int] = ()) -> None:
        self.objects: list[Any] = [*frame_roots(), *_globals_of_running_calls()]
        self._native: dict[tuple[int, int], NativeEdge] = {}
        self._places = {id(obj): place for place, obj in enumerate(self.objects)}
        self._places.update(dict.fromkeys(ignore, 0))
        self._above = list(range(len(self.objects)))
        self._filter = TypeFilter()
        missing = set(wanted)
        # Names come first: a parameter is its module's, not that of the autograd node which happens to know
        # it.
        named = deque(range(len(self.objects)))
        late: deque[int] = deque()  # optimizers know every parameter too
        hidden: deque[int] = deque()
        with quiet():
            while (named or late or hidden) and missing and len(self.objects) < max_objects:
                by_name = bool(named or late)
                place = (named or late or hidden).popleft()
                obj = self.objects[place]
                for child in self._visible(obj) if by_name else self._autograd(obj):
                    if id(child) not in self._places:
                        missing.discard(id(child))
                        is_late = by_name and torch.optim.Optimizer in mro_of(type(child))
                        (late if is_late else named).append(self._add(child, place))
                if by_name and self._filter(obj) and not is_storage(obj):
                    hidden.append(place)
                    missing.difference_update(self._storage(obj, place))

    def __enter__(self) -> Nearby:
        return self

    def __exit__(self, *_: object) -> None:
        for root in self.objects:
            if type(root) is Root:
                root.entries.clear()
        self.objects.clear()
        self._native.clear()
        self._places.clear()

    def _add(self, obj: object, above: int) -> int:
        place = len(self.objects)
        self._places[id(obj)] = place
        self.objects.append(obj)
        self._above.append(above)
        return place

    def _visible(self, obj: Any) -> list[object]:
        if type(obj) is Root:
            return [held.value for held in obj.entries]
        skipped = obj.__globals__ if type(obj) is FunctionType else None
        children = []
        for child in gc.get_referents(obj):
            bases = mro_of(type(child))
            if (
                child is not skipped
                and not any(kind in bases for kind in _NOT_ENTERED)
                and gc.is_tracked(child)
            ):
                children.append(child)
        return children

    def _autograd(self, obj: object) -> list[object]:
        children = []
        for edge in autograd_edges(obj):
            self._native.setdefault((id(obj), id(edge.target)), edge)
            children.append(edge.target)
        return children

    def _storage(self, obj: Any, place: int) -> set[int]:
        storage = storage_of(obj) if is_tensor(obj) else None
        if storage is None or id(storage) in self._places:
            return set()
        self._native[id(obj), id(storage)] = NativeEdge(EdgeKind.STORAGE, storage)
        self._add(storage, place)
        return {id(storage)}

    def native_edge(self, parent: int, child: int) -> NativeEdge | None:
        """Return the reference that native code holds from parent to child, or None for one of Python's."""
        return self._native.get((id(self.objects[parent]), id(self.objects[child])))

    def path(self, obj: object) -> list[int]:
        """Return the positions from a running call to an object, or an empty list."""
        place = self._places.get(id(obj))
        if place is None:
            return []
        path = [place]
        while self._above[path[-1]] != path[-1]:
            path.append(self._above[path[-1]])
        return path[::-1]


def _globals_of_running_calls() -> list[Root]:
    """List the models, optimizers and containers among the globals of the running calls' modules."""
    spaces = {id(frame.f_globals): frame.f_globals for frame, _ in running_frames()}
    roots = []
    for space in spaces.values():
        module = Vertex(VertexKind.MODULE, str(space.get("__name__")))
        entries = [
            Held(Edge(EdgeKind.GLOBAL, name, owner=module), value)
            for name, value in list(space.items())
            if _may_hold(value) and not name.startswith("__")
        ]
        roots.append(Root(RootKind.CALLER, entries))
    return roots


def _may_hold(value: object) -> bool:
    bases = mro_of(type(value))
    return any(kind in bases for kind in (torch.nn.Module, torch.optim.Optimizer, torch.Tensor, list, dict))
