"""Compare classes by identity, so that no code of a class or a metaclass runs: of one object, or of many at once.

`cls == other`, `cls in classes` and a dictionary whose keys are classes call `__eq__` and `__hash__` of the metaclass.
`isinstance` reads `__class__`, which a class may override, and calls `__instancecheck__`. `issubclass` calls
`__subclasscheck__`. Code that examines objects of the program uses this module instead.

A heap has hundreds of thousands of objects of a few thousand classes. `Classes` and the functions below it examine each
class once.
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
"""Classes. With more, the entries of dead classes are dropped: a program may make classes in a loop. A guess."""
_is_subclass: Final[Callable[[type, type], bool]] = type.__subclasscheck__
"""`type`'s own check: C code that compares the addresses of the bases."""


def derives(cls: type, base: type) -> bool:
    """Return True if `cls` is `base` or inherits from it."""
    return _is_subclass(base, cls)


def is_a(obj: object, base: type) -> bool:
    """Return True if the real class of an object is `base` or inherits from it."""
    return _is_subclass(base, type(obj))


def class_ids(*classes: type) -> frozenset[int]:
    """Return the ids of classes, so that you can test `id(cls) in ids`.

    Args:
        classes: classes that live as long as the process. The id of another one may be reused.
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

    def __call__(self, cls: type) -> T:
        """Return the value for a class."""
        known = self._known.get(id(cls))
        if known is not None and known[0]() is cls:
            return known[1]
        value = self._compute(cls)
        if len(self._known) >= _MAX_KNOWN:
            self._known = {key: each for key, each in self._known.items() if each[0]() is not None}
        self._known[id(cls)] = weakref.ref(cls), value
        return value


_PIECE: Final = 50_000  # objects at a time, few enough for the processor's cache; a guess


class Classes:
    """The classes of some objects. It holds each class, so drop it soon.

    Attributes:
        by_id: the classes by their ids.
    """

    def __init__(self, objects: Sequence[object]) -> None:
        types = tuple(map(type, objects))  # alive until each has its place below
        ids = ids_of(types)
        self._distinct = np.unique(ids)
        self._numbers = _places_among(self._distinct, ids)  # of each object's class: smaller than its id
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
    """Return how many of some objects are of each class, by `id` of the class.

    A count by the class itself would keep the class alive, and with it a cycle under test that runs through it.
    """
    keys, counts = np.unique(ids_of(map(type, objects)), return_counts=True)
    return dict(zip(keys.tolist(), counts.tolist(), strict=True))


def named_classes(keys: Collection[int], *heaps: Callable[[], Sequence[object]]) -> dict[int, type]:
    """Return the classes with some ids, by searching one list of objects after the other.

    Args:
        keys: ids of classes, some of which may be gone.
        heaps: functions that return a list of objects. A function is called only if the earlier lists lacked a class.
    """
    found: dict[int, type] = {}
    for heap in heaps:
        if len(found) < len(keys):
            by_id = Classes(heap()).by_id
            found.update((key, by_id[key]) for key in keys if key in by_id)
    return found


_POINTER_BYTES: Final = ctypes.sizeof(ctypes.c_void_p)
_ODD: Final = 31
"""Factor of an object's `id` in its identity; the `id` of its class is added."""


def ids_of(objects: Iterable[object]) -> NDArray[np.int64]:
    """Return the ``id`` of each object.

    A tuple or list holds the addresses of its items in one piece, and an id is an address: copying them takes a
    tenth of the time of calling `id` for each.
    """
    items = objects if type(objects) is list else tuple(objects)
    if not items:
        return np.empty(0, dtype=np.int64)
    addresses = ctypes.string_at(_first_item(items), len(items) * _POINTER_BYTES)
    return np.frombuffer(addresses, dtype=np.int64)


def identities(objects: Sequence[object]) -> NDArray[np.int64]:
    """Return a number for each object. A later object at its address has this number only if it has the same class."""
    return ids_of(objects) * _ODD + ids_of(tuple(map(type, objects)))


def without_identities(numbers: NDArray[np.int64], objects: Sequence[object]) -> NDArray[np.int64]:
    """Return some identities without those of some objects. `np.setdiff1d` takes six times as long on a whole heap."""
    return numbers[~np.isin(numbers, identities(objects), assume_unique=True)]


def _first_item(items: tuple[object, ...] | list[object]) -> int:
    """Return where the addresses of the items lie: at the end of a tuple, elsewhere for a list."""
    if type(items) is list:
        field = id(items) + list.__basicsize__ - 2 * _POINTER_BYTES
        return ctypes.c_void_p.from_address(field).value or 0
    return id(items) + tuple.__basicsize__


def are_all_among(ordered: NDArray[np.int64], few: NDArray[np.int64]) -> bool:
    """Return True if all of a few ids are among many sorted ids. `np.isin` would read all of the many ids."""
    if not len(few) or not len(ordered):
        return not len(few)
    places = np.searchsorted(ordered, few)
    return bool((ordered.take(places, mode="clip") == few).all())
