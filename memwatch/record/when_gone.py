"""Run C functions when an object is freed, without running Python bytecode.

Python drops what is raised in a callback of a weak reference. A callback written in Python has bytecodes, and between
two of them a signal handler of the program may run and raise. The exception would be lost. So these callbacks are
chains of functions of C.
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
        calls: partials of C functions. A Python function would let a signal handler run.
    """
    number = next(_numbers)
    chain = [*calls, functools.partial(_waiting.pop, number)]
    made = map(list, [map(_CALL, chain)])
    # Python passes the dead reference to the callback; `next` takes it as its default, which nobody uses
    callback: Callable[[Any], object] = functools.partial(next, made)
    _waiting[number] = weakref.ref(of, callback)
