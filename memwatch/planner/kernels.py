"""Kernels: the loops that take most of the planner's time. Each exists in C++, with a twin in Python.

The C++ library is used if it exists. Searches call `prepare` first. It compiles a missing library, once per machine, if
the time limit allows. The plan of a small program is often found before any search.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from memwatch.errors import MemwatchError
from memwatch.planner.native import calls, library

if TYPE_CHECKING:
    import pathlib

    from memwatch.planner.clock import Clock

F = TypeVar("F", bound=Callable[..., Any])

_SILENT_S = 2.0  # seconds of compiling before a line says so; a guess
_SHARE_WAITED = (
    0.7  # share of the time limit to wait for the compiler; the rest is for the search in Python; a guess
)


class _Loader:
    """The library of this process, and the running compiler."""

    def __init__(self) -> None:
        self.calls: calls.Calls | None = None
        self._build: library.Build | None = None
        self._has_failed = False
        self._has_looked = False
        self._lock = threading.Lock()

    def look(self) -> calls.Calls | None:
        """Return the library, or None if its file is missing. The file is searched once per process."""
        if not self._has_looked:
            self._has_looked = True
            self._load()
        return self.calls

    def prepare(self, clock: Clock) -> None:
        with self._lock:
            if self.look() is None and not self._has_failed:
                try:
                    self._compile(clock.share(_SHARE_WAITED))
                except MemwatchError as error:
                    self._has_failed = True
                    _say(f"{error}; `memwatch build` tries again")

    def _load(self) -> None:
        file = library.path()
        loaded = library.load(file) if file.exists() and not library.distrust() else None
        if loaded is not None:
            self.calls = calls.Calls(loaded)

    def _compile(self, clock: Clock) -> None:
        if self._build is None:
            self._build = library.Build()
        if not self._build.is_done(min(_SILENT_S, clock.left_s())):
            _say("compiling the planner's kernels, once for this machine (`memwatch build` does it ahead)")
            if not self._build.is_done(clock.left_s()):
                return
        self._load()


_loader = _Loader()


def with_twin(call: Callable[..., Any]) -> Callable[[F], F]:
    """Return a decorator for a kernel in Python. The kernel calls its C++ twin, `call`, if the library is loaded."""

    def decorate(plain: F) -> F:
        @functools.wraps(plain)
        def kernel(*args: Any) -> Any:
            found = _loader.look()
            return plain(*args) if found is None else call(found, *args)

        return cast("F", kernel)

    return decorate


def prepare(clock: Clock) -> None:
    """Compile the library if it is missing and the time allows it. Print a line if that takes long.

    If the compiler or the time is missing, the kernels in Python run.
    """
    if _loader.calls is None:
        _loader.prepare(clock)


def are_fast() -> bool:
    """Return True if the kernels run in C++."""
    return _loader.look() is not None


def compile_kernels() -> tuple[pathlib.Path, bool]:
    """Compile the library, unless it is there already; return it, and whether it was compiled now.

    Raises:
        MemwatchError: it could not be compiled.
    """
    return library.build()


def _say(sentence: str) -> None:
    sys.stderr.write(f"memwatch: {sentence}\n")
