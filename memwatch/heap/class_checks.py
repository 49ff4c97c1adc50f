"""Compare and look up classes by identity, so that no code of a metaclass or a class runs.

`cls == other`, `cls in classes` and a dictionary whose keys are classes call `__eq__` and `__hash__` of the
metaclass. `isinstance` reads `__class__`, which a class may override, and calls `__instancecheck__`; `issubclass`
calls `__subclasscheck__`. Code that examines objects of the program uses this module instead.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_MAX_KNOWN: Final = 4096
"""With so many classes the entries of dead ones are dropped: a program may make classes in a loop. A guess."""
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
