"""References in C that are not autograd's and that gc never shows: numpy arrays, torch futures.

numpy does not take part in garbage collection. ``tensor.numpy()`` refers to the tensor, an array of objects to
each of them, and neither shows; nor do the tuples and dictionaries around arrays, which gc does not track.
"""

from __future__ import annotations

import gc
from itertools import chain, compress, filterfalse
from operator import not_
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch._torch.jit import Future, ScriptModule, tensors_of_script_module
from memwatch.edges import EdgeKind
from memwatch.heap.autograd import NativeEdge
from memwatch.heap.capsules import Capsule
from memwatch.heap.ids import ids_of
from memwatch.heap.names import instance_dict
from memwatch.heap.tensors import mro_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

_BASE: Final = np.ndarray.__dict__["base"]
_DTYPE: Final = np.ndarray.__dict__["dtype"]
_ROLES: Final = {"parameter": EdgeKind.PARAMETER, "buffer": EdgeKind.BUFFER}
_LEAVES: Final = [id(cls) for cls in (int, str, float, bytes, bool, complex, type(None), type, CodeType)]
"""The ids of the classes of objects that gc does not list and that lead nowhere."""
_CHUNK: Final = 10_000  # objects whose references are listed at a time


def keeps_in_c(cls: type) -> bool:
    """Return True if a class keeps references that gc does not show and that :func:`c_held_edges` reads."""
    bases = mro_of(cls)
    return np.ndarray in bases or Future in bases or ScriptModule in bases


def c_held_edges(obj: Any) -> list[NativeEdge]:
    """List what a numpy array, a finished torch future or a scripted module holds; no code of a subclass runs."""
    bases = mro_of(type(obj))
    if Future in bases:
        return _result(obj)
    if ScriptModule in bases:
        return _scripted(obj)
    edges = (
        [] if (base := _BASE.__get__(obj)) is None else [NativeEdge(EdgeKind.NUMPY_BASE, base, hidden=False)]
    )
    if _DTYPE.__get__(obj) == np.object_:
        items = np.ndarray.tolist(np.ndarray.reshape(obj, -1))
        edges += [
            NativeEdge(EdgeKind.ITEM, item, position=position, hidden=False)
            for position, item in enumerate(items)
        ]
    return edges


def _result(future: Any) -> list[NativeEdge]:
    try:
        done = Future.done(future)
        return [NativeEdge(EdgeKind.FUTURE_RESULT, Future.value(future), hidden=False)] if done else []
    except Exception:  # the error that the future was given, which a signal handler may have raised long ago
        return []


def results_of(future: Any) -> list[Any]:
    """Return the result of a torch future, or the items of a list, which a collective's makes anew at each call."""
    results: list[Any] = []
    for edge in _result(future):
        made: Any = edge.target
        results += made if type(made) in (list, tuple) else [made]
    return results


def _scripted(module: Any) -> list[NativeEdge]:
    inside = (instance_dict(module) or {}).get("_c")
    return [
        NativeEdge(_ROLES[role], tensor, name, hidden=False)
        for role, name, tensor in tensors_of_script_module(inside)
    ]


class Unlisted:
    """The references of listed objects to what gc does not list, and what of that may lead to a tensor.

    Attributes:
        leading: arrays, capsules, and tuples and dictionaries without gc's attention, by `id`.
    """

    def __init__(self) -> None:
        self.leading: dict[int, object] = {}
        self._kinds = list(map(id, _untracked_kinds()))
        self._owners: list[NDArray[np.int32]] = []
        self._ids: list[NDArray[np.int64]] = []

    def note(self, objects: Sequence[object], ids: NDArray[np.int64], owners: NDArray[np.int64]) -> None:
        """Note references.

        Args:
            objects: what they lead to.
            ids: the ids of these.
            owners: the position of who refers to each.
        """
        classes = ids_of(tuple(map(type, objects)))
        leads = ~_is_one_of(classes, _LEAVES)
        self._owners.append(owners[leads].astype(np.int32))
        self._ids.append(ids[leads])
        of_kinds = [objects[place] for place in np.flatnonzero(_is_one_of(classes, self._kinds)).tolist()]
        self.leading.update((id(obj), obj) for obj in filterfalse(gc.is_tracked, of_kinds))

    def references(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the owner of each reference, and the id of what it leads to."""
        owners = np.concatenate([np.empty(0, dtype=np.int32), *self._owners])
        return owners, np.concatenate([np.empty(0, dtype=np.int64), *self._ids])


def _is_one_of(ids: NDArray[np.int64], few: Sequence[int]) -> NDArray[np.bool_]:
    """Return what `np.isin` does, which takes as long to prepare as to compare with some thousand ids."""
    found = np.zeros(len(ids), dtype=bool)
    for each in few:
        found |= ids == each
    return found


def _untracked_kinds() -> set[type]:
    return {dict, tuple, Capsule, *_array_types(np.ndarray)}


def untracked(
    *listed: Sequence[object], are_listed: Callable[[Iterable[int]], Sequence[bool]]
) -> list[object]:
    """Find the arrays, capsules, and tuples and dictionaries without gc's attention that listed objects refer to.

    Args:
        *listed: where to look.
        are_listed: says of objects, by ``id``, which are listed already.

    Returns:
        Objects that gc does not list.
    """
    kinds = _untracked_kinds()
    arrays = kinds - {dict, tuple, Capsule}
    found: dict[int, object] = {}
    todo = listed
    while any(todo):
        fresh: dict[int, object] = {}
        for part in chain.from_iterable(map(_parts, todo)):
            among = compress(part, map(arrays.__contains__, map(type, part)))
            behind = [edge.target for obj in among for edge in c_held_edges(obj)]
            near = [*gc.get_referents(*part), *behind]
            of_kinds = compress(near, map(kinds.__contains__, map(type, near)))
            fresh.update((id(obj), obj) for obj in filterfalse(gc.is_tracked, of_kinds))
        unlisted = compress(fresh, map(not_, are_listed(fresh)))
        new = {key: fresh[key] for key in unlisted if key not in found}
        found.update(new)
        todo = (list(new.values()),)
    return list(found.values())


def _parts(listed: Sequence[object]) -> Iterator[Sequence[object]]:
    return (listed[start : start + _CHUNK] for start in range(0, len(listed), _CHUNK))


def _array_types(cls: type) -> list[type]:
    return [cls, *chain.from_iterable(map(_array_types, type.__subclasses__(cls)))]
