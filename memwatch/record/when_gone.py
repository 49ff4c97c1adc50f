"""Do something in the moment in which an object goes, without a frame of Python's.

Python drops what is raised in a callback of a weak reference. A callback written in Python has bytecodes, and between
two of them a signal handler of the program may run and raise. So these callbacks are chains of functions of C.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_waiting: Final[dict[int, weakref.ref[Any]]] = {}
_CALL: Final[Callable[[functools.partial[Any]], Any]] = functools.partial.__call__
_numbers: Final = itertools.count()


def when_gone(of: object, *calls: functools.partial[Any]) -> None:
    """Make calls when an object is gone, one after another.

    Args:
        of: the object.
        calls: of functions of C alone.
    """
    number = next(_numbers)
    chain = [*calls, functools.partial(_waiting.pop, number)]
    made = map(list, [map(_CALL, chain)])
    # the reference that a callback is given is taken for the default of `next`
    callback: Callable[[Any], object] = functools.partial(next, made)
    _waiting[number] = weakref.ref(of, callback)
