"""Functions of torch and Python that memwatch replaces while a block is open. It restores them when the block ends.

A program may keep a replacement: a module of torch that is first imported inside the block refers to it, and so does a
wrapper that the program puts around it. So the replacement holds its recorder by a weak reference. Once the block is
over, it only calls the original. Of two blocks that overlap, the one that began first may end first. The other then
restores the original that both found.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType


_INHERITED: Final = object()


@dataclass(slots=True, eq=False)
class _Put:
    """One replacement. `own` is what the place had before, and `ours` is what it has now."""

    place: Any
    name: str
    own: Any
    ours: Any


_put_now: Final[list[_Put]] = []
"""The replacements of all open blocks."""


class _Switch:
    """Whether replacements call their methods of memwatch."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = True


class Patches:
    """The functions that one object replaced."""

    def __init__(self) -> None:
        self._put: list[_Put] = []
        self._switch = _Switch()

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
            The code of the replacement, and the code of the method.
        """
        replacement = _replacement(getattr(place, name), method, self._switch)
        self._place(place, name, replacement)
        return replacement.__code__, method.__func__.__code__

    def put_around(self, place: Any, name: str, method: Any) -> None:
        """Replace a function whose call may outlast the block, so that the call keeps nothing of the recording alive.

        Args:
            place: the module or class that has it.
            name: its name there.
            method: a bound method that is called before the original, with its arguments. It returns a function to call
                after the original, or None. The running call keeps only that function.
        """
        self._place(place, name, _surrounded(getattr(place, name), method, self._switch))

    def put_value(self, place: Any, name: str, value: object) -> None:
        """Replace a value that is not a function, such as a module that a module of torch has imported."""
        self._place(place, name, value)

    def _place(self, place: Any, name: str, replacement: Any) -> None:
        own = vars(place).get(name, _INHERITED)
        ours = staticmethod(replacement) if isinstance(own, staticmethod) else replacement
        put = _Put(place, name, own, ours)
        self._put.append(put)
        _put_now.append(put)
        setattr(place, name, ours)

    def take_off(self) -> None:
        """Restore every original, except where the program has replaced it since."""
        self._switch.on = False
        self._switch = _Switch()
        while self._put:
            put = self._put.pop()
            _put_now.remove(put)
            if vars(put.place).get(put.name) is put.ours:
                if put.own is _INHERITED:
                    delattr(put.place, put.name)
                else:
                    setattr(put.place, put.name, put.own)
            for over in _put_now:
                if (
                    over.own is put.ours
                ):  # a block that began later is still open: it restores what this one found
                    over.own = put.own


def _replacement(original: Callable[..., Any], method: Any, switch: _Switch) -> Any:
    # not a weakref.WeakMethod: that is Python code, which dynamo may compile
    reference, function = weakref.ref(method.__self__), method.__func__

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        recorder = reference() if switch.on else None
        return (
            original(*args, **kwargs) if recorder is None else function(recorder, original, *args, **kwargs)
        )

    return replacement


def _surrounded(original: Callable[..., Any], method: Any, switch: _Switch) -> Any:
    reference, function = weakref.ref(method.__self__), method.__func__

    def enter(*args: Any, **kwargs: Any) -> Callable[[], object] | None:
        recorder = reference() if switch.on else None
        return None if recorder is None else function(recorder, *args, **kwargs)

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        try:
            # no variable holds the recorder, so that this frame does not keep it alive
            leave = enter(*args, **kwargs)
        except MemoryError:
            leave = None
        try:
            return original(*args, **kwargs)
        finally:
            if leave is not None:
                leave()

    return replacement
