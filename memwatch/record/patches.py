"""Functions of torch that memwatch replaces while a block is open. It restores them when the block ends.

A program may keep a replacement: a module of torch that is first imported inside the block refers to it, and so does a
wrapper that the program puts around it. So the replacement holds its recorder by a weak reference. Once the block is
over, it only calls the original. One of the replaced functions resizes a storage.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from memwatch.record.tables.storages import Storages


_INHERITED: Final = object()


class _Switch:
    """Whether replacements call their methods of memwatch."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = True


class Patches:
    """The functions that one object replaced."""

    def __init__(self) -> None:
        self._put: list[tuple[Any, str, Any, Any]] = []
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
        self._put.append((place, name, own, ours))
        setattr(place, name, ours)

    def take_off(self) -> None:
        """Restore every original, except where the program has replaced it since."""
        self._switch.on = False
        self._switch = _Switch()
        while self._put:
            place, name, own, ours = self._put.pop()
            if vars(place).get(name) is not ours:
                continue
            if own is _INHERITED:
                delattr(place, name)
            else:
                setattr(place, name, own)


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


class PatchedResize:
    """Report every `resize_` to the table of storages."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self._patches = Patches()

    def start(self) -> None:
        """Begin to receive calls."""
        self._patches.put(torch.UntypedStorage, "resize_", self._resize)

    def stop(self) -> None:
        """Leave torch as it was before `start`."""
        self._patches.take_off()

    def _resize(self, resize: Callable[..., Any], storage: torch.UntypedStorage, nbytes: int) -> Any:
        result = resize(storage, nbytes)
        self._storages.resized(storage)
        return result
