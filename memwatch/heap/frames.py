"""Read the local variables of running calls without prolonging their lives."""

from __future__ import annotations

import inspect
import sys
import threading
from itertools import compress, filterfalse
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.heap.classes import ids_of, is_a
from memwatch.heap.names import instance_dict
from memwatch.heap.tensors import mro_of, type_dict
from memwatch.own_code import is_memwatch_code

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

_PROBE: Final = "memwatch"
_NAME: Final = next(key for key, value in vars(threading.Thread(name=_PROBE)).items() if value == _PROBE)
"""The attribute in which `threading` keeps the name of a thread."""
_HELD_BY_FRAME_ONLY: Final = 3  # the frame, our name, the argument of getrefcount


def read_locals(frame: FrameType) -> dict[str, object]:
    """Return the local variables of a call, by name.

    Up to Python 3.12 ``frame.f_locals`` is a dictionary that the frame keeps, with a reference to every
    value: a later ``del x`` in the program would free nothing. It is emptied again unless the program holds it
    itself. Who calls this must not hold it: see `without_empty_dictionaries`.

    Args:
        frame: a running or suspended call.

    Returns:
        A new dictionary; drop it soon.
    """
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return _locals_of_body(frame)
    view = frame.f_locals
    values = dict(view)
    if type(view) is dict and sys.getrefcount(view) <= _HELD_BY_FRAME_ONLY:
        view.clear()
    return values


def _locals_of_body(frame: FrameType) -> dict[str, object]:
    """Return the variables of a class body, a module or code that `exec` runs.

    Their namespace is the program's: a metaclass may prepare one of any class. If the code has cells, reading
    ``f_locals`` writes them into the namespace first, by its own ``__setitem__``, so it isn't read then.
    """
    if frame.f_code.co_cellvars:
        return {}
    namespace = frame.f_locals
    if not is_a(namespace, dict):
        return {}
    return {name: value for name, value in list(dict.items(namespace)) if type(name) is str}


def names_of_threads() -> dict[int | None, str]:
    """Return the names of the threads that run, by their identifiers; a property of a subclass isn't called."""
    found: dict[int | None, str] = {}
    for thread in threading.enumerate():
        ident = (instance_dict(thread) or {}).get("_ident")
        if type(ident) is int:
            found[ident] = thread_name(thread) or f"thread {ident}"
    return found


def thread_name(thread: threading.Thread) -> str | None:
    """Return the name of a thread: a text that its class has, or else what `threading` keeps in the object."""
    for base in mro_of(type(thread)):
        name = type_dict(base).get("name")
        if type(name) is str:
            return name
    name = (instance_dict(thread) or {}).get(_NAME)
    return name if type(name) is str else None


def without_empty_dictionaries(objects: list[Any]) -> list[Any]:
    """Return the objects without empty dictionaries, which lead nowhere.

    A frame may keep a dictionary since `read_locals` read and emptied it. In one of memwatch's lists it would look as
    if the program held it, and the next sample would leave it filled.
    """
    is_dictionary = ids_of(tuple(map(type, objects))) == id(dict)
    empty = list(filterfalse(None, compress(objects, is_dictionary.tolist())))
    if not empty:
        return objects
    places = np.flatnonzero(is_dictionary)
    is_kept = np.ones(len(objects), dtype=bool)
    is_kept[places[np.isin(ids_of(objects)[places], ids_of(empty))]] = False
    return list(compress(objects, is_kept.tolist()))


def running_frames() -> Iterator[tuple[FrameType, str, int]]:
    """Yield every running call of every thread, innermost first, with the name and the identifier of its thread.

    memwatch's own calls are left out, because the program is not responsible for their objects.
    """
    names = names_of_threads()
    frames: dict[int, FrameType | None] = dict(sys._current_frames())
    here = threading.get_ident()
    for ident in list(frames):
        frame = frames.pop(ident)  # one of them is this very call: kept in a variable it would be a cycle
        if ident != here and may_be_traced(frame):
            continue
        while frame is not None:
            if not is_own_code(frame.f_code):
                yield frame, names.get(ident, f"thread {ident}"), ident
            frame = frame.f_back


class FrameMark:
    """A mark that memwatch puts into the `f_trace` of a frame, to tell it from all other frames.

    Attributes:
        note: what memwatch remembers about the frame.
    """

    __slots__ = ("note",)

    def __init__(self) -> None:
        self.note: Any = None

    def __call__(self, *_event: object) -> None:
        """Trace nothing, in case a debugger starts within the call."""


def may_be_traced(frame: FrameType | None) -> bool:
    """Return True if a debugger, profiler or coverage tool may be at a call of another thread.

    Up to Python 3.12 its variables are written back from ``f_locals`` when the tool returns: reading them here,
    and emptying them again, would unset variables of the program.
    """
    tools = (sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile())
    if any(tool is not None for tool in tools):
        return True
    while frame is not None:
        if frame.f_trace is not None and type(frame.f_trace) is not FrameMark:
            return True
        frame = frame.f_back
    return False


def is_own_code(code: CodeType) -> bool:
    """Return True for a function of memwatch itself: the program is not responsible for objects of its calls."""
    return is_memwatch_code(code.co_filename)


def is_test_runner_code(filename: str) -> bool:
    """Return True if a file belongs to pytest or unittest, whose references to a test's values do not leak."""
    parts = Path(filename).parts
    return bool(
        {"_pytest", "pluggy", "pytest_memwatch", "unittest", "xdist", "execnet", "pytest_asyncio"}
        & set(parts)
    )


def is_import(obj: object) -> bool:
    """Return True if an object is a call of the import system.

    A module that keeps a frame while it is being imported keeps the frames of its importers too, once. torch does so
    when the first optimizer step or checkpoint of a process loads torch._dynamo.
    """
    return type(obj) is FrameType and obj.f_code.co_filename.startswith("<frozen importlib")
