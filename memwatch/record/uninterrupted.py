"""Delay signal handlers while memwatch's tables are inconsistent, or while a search runs.

A Python signal handler, such as the one for Ctrl-C, can raise at any point in the main thread. If it interrupted a
flush, rows would be lost, or allocator events would no longer be recorded. So the handler waits until the flush ends.

`signal.signal` and `signal.getsignal` compute the `repr` of a handler. The `repr` of asyncio's handler contains the
main task, and prints every tensor in its result. So this module calls the C functions in `_signal`, which compute
none.

`signal.signal` also installs Python's C handler in the operating system and lets the signal interrupt system calls.
The program may have changed both: `faulthandler.register` puts a C handler above Python's, and asyncio calls
`signal.siginterrupt`. So memwatch reads the system's handler first and restores it at once; only Python's table
changes.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import contextlib
import ctypes
import functools
import signal
import threading
from typing import TYPE_CHECKING, Any, Final

from memwatch.signal_handlers import call_later, python_handlers, run_handler

if TYPE_CHECKING:
    from collections.abc import Iterator


_Action: Final = ctypes.c_char * 256
"""Room for a `struct sigaction`, which has 152 bytes with glibc on x86-64."""
_sigaction: Final[Any] = getattr(ctypes.pythonapi, "sigaction", None)
"""Called with the GIL held, so no other Python thread changes the handler between the read and the restore."""
if _sigaction is not None:
    _sigaction.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let the handlers of signals that arrive in the block run at its end, in their order."""
    if threading.get_ident() != threading.main_thread().ident:  # no other thread runs handlers
        yield
        return
    waiting: list[tuple[int, Any]] = []
    handlers = python_handlers()
    replaced = list(handlers.items())
    try:
        for number in handlers:
            _install(number, lambda *arrived: waiting.append(arrived))
        yield
    finally:
        try:
            _put_back(replaced)
        finally:
            _run(waiting, handlers)


def _put_back(handlers: list[tuple[int, Any]]) -> None:
    """Restore all handlers, even if one of them runs at once and raises."""
    try:
        while handlers:
            _install(*handlers[-1])
            handlers.pop()
    finally:
        if handlers:
            _put_back(handlers)


def _install(number: int, handler: Any) -> None:
    """Change the handler that Python runs, and nothing that the system does."""
    if _sigaction is None:
        _signal.signal(number, handler)
        return
    kept = _Action()
    _sigaction(number, None, kept)
    try:
        _signal.signal(number, handler)
    finally:
        _sigaction(number, kept, None)


def _run(waiting: list[tuple[int, Any]], handlers: dict[int, Any]) -> None:
    """Run the handlers that waited. If one raises, Python runs the remaining ones later, in the program."""
    try:
        while waiting:
            number, frame = waiting.pop(0)
            run_handler(handlers[number], number, frame)
    finally:
        while waiting:
            number, _ = waiting.pop(0)
            call_later(functools.partial(_thread.interrupt_main, signal.Signals(number)))
