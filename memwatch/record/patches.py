"""Functions of torch that are replaced while a block is open, and put back when it ends.

A program may keep a replacement: whoever imports a module of torch inside the block gets it. So the replacement
refers to its recorder weakly, and when the block is over it does what the original does.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType


_INHERITED: Final = object()


class Patches:
    """The functions that one object replaced."""

    def __init__(self) -> None:
        self._put: list[tuple[Any, str, Any]] = []

    def __len__(self) -> int:
        """Return how many functions are replaced now."""
        return len(self._put)

    def put(self, place: Any, name: str, method: Any) -> tuple[CodeType, CodeType]:
        """Replace a function.

        Args:
            place: the module or class that has it.
            name: its name there.
            method: a bound method that is called with the original and the arguments of the call.

        Returns:
            The code of the replacement, and that of the method.
        """
        own = vars(place).get(name, _INHERITED)
        replacement = _replacement(getattr(place, name), method)
        self._put.append((place, name, own))
        setattr(place, name, staticmethod(replacement) if isinstance(own, staticmethod) else replacement)
        return replacement.__code__, method.__func__.__code__

    def take_off(self) -> None:
        """Put every original back."""
        while self._put:
            place, name, own = self._put.pop()
            if own is _INHERITED:
                delattr(place, name)
            else:
                setattr(place, name, own)


def _replacement(original: Callable[..., Any], method: Any) -> Any:
    # no weakref.WeakMethod: it is Python code, which dynamo would compile where it evaluates our frames
    reference, function = weakref.ref(method.__self__), method.__func__

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        recorder = reference()
        return (
            original(*args, **kwargs) if recorder is None else function(recorder, original, *args, **kwargs)
        )

    return replacement
