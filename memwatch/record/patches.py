"""Functions of torch that are replaced while a block is open, and put back when it ends.

A program may keep such a stand-in: whoever imports a module of torch inside the block gets it. So it holds
the recorder by weak reference only, and when the block is over it is the original.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType


class StandIns:
    """The functions that one recorder replaced."""

    def __init__(self) -> None:
        self._put: list[tuple[Any, str, Any, bool]] = []

    def __len__(self) -> int:
        """Count the functions that are replaced now."""
        return len(self._put)

    def put(self, place: Any, name: str, method: Any) -> tuple[CodeType, CodeType]:
        """Replace a function.

        Args:
            place: the module or class that has it.
            name: its name there.
            method: a bound method that is called with the original and the arguments of the call.

        Returns:
            The code that stands in, and that of the method.
        """
        original = getattr(place, name)
        replacement = _stand_in(original, method)
        self._put.append((place, name, original, name in vars(place)))
        setattr(place, name, replacement)
        return replacement.__code__, method.__func__.__code__

    def take_off(self) -> None:
        """Put every original back."""
        while self._put:
            place, name, original, own = self._put.pop()
            if own:
                setattr(place, name, original)
            else:
                delattr(place, name)


def _stand_in(original: Callable[..., Any], method: Any) -> Any:
    # no weakref.WeakMethod: it is Python code, which dynamo would compile where it evaluates our frames
    reference, function = weakref.ref(method.__self__), method.__func__

    @functools.wraps(original)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        recorder = reference()
        return (
            original(*args, **kwargs) if recorder is None else function(recorder, original, *args, **kwargs)
        )

    return stand_in
