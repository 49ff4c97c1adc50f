"""Compare classes by identity, so that no code of a class or a metaclass runs.

`cls == other`, `cls in classes` and a dictionary whose keys are classes call `__eq__` and `__hash__` of the metaclass.
`isinstance` reads `__class__`, which a class may override, and calls `__instancecheck__`. `issubclass` calls
`__subclasscheck__`. Code that examines objects of the program uses this module instead.

A heap has hundreds of thousands of objects of a few thousand classes. So `Classes`, `of_classes` and `count_by_class`
examine each class once. The functions at the end of the file compare the ids of many objects at once.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from numpy.typing import NDArray

T = TypeVar("T")

_MAX_KNOWN: Final = 4096
"""Classes. If `ByClass` knows more, it drops the entries of dead classes, because a program may make classes in a loop.
A guess."""
_is_subclass: Final[Callable[[type, type], bool]] = type.__subclasscheck__
"""The check of `type` itself: C code that compares the addresses of the bases."""


def derives(cls: type, base: type) -> bool:
    """Return True if `cls` is `base` or inherits from it."""
    return _is_subclass(base, cls)


def is_a(obj: object, base: type) -> bool:
    """Return True if the real class of an object is `base` or inherits from it."""
    return _is_subclass(base, type(obj))


def class_ids(*classes: type) -> frozenset[int]:
    """Return the ids of classes, so that you can test `id(cls) in ids`.

    Args:
        classes: classes that live as long as the process. A class that dies may leave its id to another class.
    """
    return frozenset(map(id, classes))


class ByClass(Generic[T]):
    """Compute something once for each class.

    The classes are held weakly. An entry counts only while its class is alive, so a reused id does no harm.

    Args:
        compute: returns the value for a class.
    """

    def __init__(self, compute: Callable[[type], T]) -> None:
        self._compute = compute
        self._known: dict[int, tuple[weakref.ref[type], T]] = {}
        self._limit = _MAX_KNOWN

    def __call__(self, cls: type) -> T:
        """Return the value for a class."""
        known = self._known.get(id(cls))
        if known is not None and known[0]() is cls:
            return known[1]
        value = self._compute(cls)
        if len(self._known) >= self._limit:
            self._known = {key: each for key, each in self._known.items() if each[0]() is not None}
            # if most classes are alive, the next class must not cause another pass over all of them
            self._limit = max(_MAX_KNOWN, 2 * len(self._known))
        self._known[id(cls)] = weakref.ref(cls), value
        return value


_PIECE: Final = 50_000
"""Objects that are looked up at a time, so that their ids stay in the processor's cache. A guess."""


class Classes:
    """The classes of some objects. It holds strong references to the classes, so drop it soon.

    Attributes:
        by_id: the classes by their ids.
    """

    def __init__(self, objects: Sequence[object]) -> None:
        types = tuple(map(type, objects))  # keeps the classes alive until `by_id` does
        ids = ids_of(types)
        self._distinct = np.unique(ids)
        # of each object, the position of its class in `_distinct`: mostly one or two bytes in place of an id's eight
        self._numbers = _places_among(self._distinct, ids)
        self.by_id: dict[int, type] = {
            key: ctypes.cast(key, ctypes.py_object).value for key in self._distinct.tolist()
        }

    def ids_where(self, wanted: Callable[[type], bool]) -> list[int]:
        """Return the ids of the wanted classes."""
        return [key for key, cls in self.by_id.items() if wanted(cls)]

    def places(self, ids: Collection[int]) -> NDArray[np.int64]:
        """Return the positions of the objects whose class has one of these ids."""
        return np.flatnonzero(np.isin(self._distinct, list(ids))[self._numbers])


def _places_among(distinct: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.unsignedinteger[Any]]:
    numbers = np.empty(len(ids), dtype=np.min_scalar_type(len(distinct)))
    for start in range(0, len(ids), _PIECE):
        piece = slice(start, start + _PIECE)
        numbers[piece] = np.searchsorted(distinct, ids[piece])
    return numbers


def of_classes(objects: Sequence[Any], wanted: Callable[[type], bool]) -> list[Any]:
    """Return the objects, in their order, whose class is wanted."""
    classes = Classes(objects)
    return [objects[place] for place in classes.places(classes.ids_where(wanted)).tolist()]


def count_by_class(objects: Sequence[object]) -> dict[int, int]:
    """Return how many of some objects are of each class, by the `id` of the class.

    The keys are ids because a key that is a class would keep the class alive. A reference cycle that runs through the
    class would then stay alive too, and a check for leaks could not see it die.
    """
    keys, counts = np.unique(ids_of(map(type, objects)), return_counts=True)
    return dict(zip(keys.tolist(), counts.tolist(), strict=True))


def named_classes(keys: Collection[int], *heaps: Callable[[], Sequence[object]]) -> dict[int, type]:
    """Return the classes with some ids, from the objects of these classes.

    Args:
        keys: ids of classes. A class that is gone is left out of the result.
        heaps: functions that return lists of objects. A function is called only if a class is in no earlier list.
    """
    found: dict[int, type] = {}
    for heap in heaps:
        if len(found) < len(keys):
            by_id = Classes(heap()).by_id
            found.update((key, by_id[key]) for key in keys if key in by_id)
    return found


_POINTER_BYTES: Final = ctypes.sizeof(ctypes.c_void_p)
_SPREAD: Final = -0x61C8864680B583EB
"""The factor of an object's `id` in its identity: 2**64 divided by the golden ratio, as a signed number.

The distances between ids, and between the ids of classes, are small multiples of 16. So a small factor gives many pairs
of objects one identity: 31 did so for 1,385 of the 320,000 objects after `import torch`. This factor did so for none.
"""


def ids_of(objects: Iterable[object]) -> NDArray[np.int64]:
    """Return the ``id`` of each object.

    An id is an address, and a tuple or list holds the addresses of its items in one piece. Copying that piece takes
    less than a tenth of the time of one call of `id` for each object.
    """
    items = objects if type(objects) is list else tuple(objects)
    if not items:
        return np.empty(0, dtype=np.int64)
    addresses = ctypes.string_at(_first_item(items), len(items) * _POINTER_BYTES)
    return np.frombuffer(addresses, dtype=np.int64)


def identities(objects: Sequence[object]) -> NDArray[np.int64]:
    """Return a number for each object, from its address and its class.

    Objects that are alive together have different numbers. If an object dies and another takes its address, the new
    object has the same number only if it has the same class.
    """
    return ids_of(objects) * _SPREAD + ids_of(tuple(map(type, objects)))


def without_identities(numbers: NDArray[np.int64], objects: Sequence[object]) -> NDArray[np.int64]:
    """Return the identities that belong to none of some objects.

    By default `np.setdiff1d` sorts all identities first. On a heap of 320,000 objects it took ten times as long.
    """
    return numbers[~np.isin(numbers, identities(objects), assume_unique=True)]


def _first_item(items: tuple[object, ...] | list[object]) -> int:
    """Return the address of the piece of memory that holds the addresses of the items."""
    if type(items) is list:  # a list points to that piece; in a tuple it is the end of the object
        field = id(items) + list.__basicsize__ - 2 * _POINTER_BYTES
        return ctypes.c_void_p.from_address(field).value or 0
    return id(items) + tuple.__basicsize__


def are_all_among(ordered: NDArray[np.int64], few: NDArray[np.int64]) -> bool:
    """Return True if a long sorted array of ids contains all of a few ids. `np.isin` would read the whole array."""
    if not len(few) or not len(ordered):
        return not len(few)
    places = np.searchsorted(ordered, few)
    return bool((ordered.take(places, mode="clip") == few).all())
