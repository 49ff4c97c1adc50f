"""Code of memwatch that runs inside the program's calls must not disturb the program.

An error of memwatch becomes a note, and the program's call goes on (`Harmless`). Signal handlers wait while memwatch's
tables are inconsistent (`uninterrupted`). Work that follows the death of an object runs without Python bytecode,
because a signal handler could interrupt bytecode (`call_when_freed`). A traceback of the program's error shows no
frames of memwatch (`unlink_own_frames`).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import contextlib
import ctypes
import functools
import itertools
import os
import signal
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from memwatch import patches, signal_handlers
from memwatch._torch.dynamo import skip_frames_of
from memwatch.errors import MemwatchError, linked_errors
from memwatch.signal_handlers import call_later, python_handlers, raised_by_handler, run_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType


class Harmless:
    """Catch the errors of memwatch in a `with` block.

    Exceptions that belong to the program pass: its memory limit, an interrupt, an exit, and exceptions of its signal
    handlers.

    Args:
        could_not_record: called with `what` and the error.
        what: name of the thing that is being recorded, for the note.
    """

    def __init__(self, could_not_record: Callable[[str, Exception], None], what: str) -> None:
        self._could_not_record = could_not_record
        self._what = what

    def __enter__(self) -> None:
        """Do nothing. Blocks may be nested, also in several threads."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Note an error, and go on after the block."""
        if not isinstance(error, Exception) or isinstance(error, MemwatchError) or raised_by_handler(error):
            return False
        try:
            self._could_not_record(self._what, error)
        except MemoryError:  # nothing can be noted now
            return True
        return True


def weak_callback(could_not_record: Callable[[str, Exception], None]) -> Callable[[str, Exception], None]:
    """Return a function that calls a method without keeping its object alive. torch may keep the function."""
    reference = weakref.WeakMethod(could_not_record)

    def note(what: str, error: Exception) -> None:
        method = reference()
        if method is not None:
            method(what, error)

    return note


for _function in (Harmless.__enter__, Harmless.__exit__):  # they may run where dynamo evaluates frames
    skip_frames_of(_function.__code__)


_Action: Final = ctypes.c_char * 256
"""Room for a `struct sigaction`, which has 152 bytes with glibc on x86-64."""
_sigaction: Final[Any] = getattr(ctypes.pythonapi, "sigaction", None)
"""Called with the GIL held, so no other Python thread changes the handler between the read and the restore."""
if _sigaction is not None:
    _sigaction.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay the signal handlers of the program until the end of the block. They run in the order of the signals."""
    if threading.get_ident() != threading.main_thread().ident:  # no other thread runs handlers
        yield
        return
    waiting: list[tuple[int, Any]] = []
    handlers = python_handlers()
    replaced: list[tuple[int, Any]] = []
    try:
        for each in handlers.items():
            replaced.append(each)
            _install(each[0], lambda *arrived: waiting.append(arrived))
        yield
    finally:
        # This loop restores all handlers, even if one of them runs at once and raises. It stands here and not in a
        # function: near the limit of recursion, leaving may need no more levels of calls than entering did.
        raised: BaseException | None = None
        for _ in range(_MOST_TRIES):
            try:
                while replaced:
                    _install(*replaced[-1])
                    replaced.pop()
            except BaseException as error:
                raised = error
            if not replaced:
                break
        try:
            if raised is not None:
                raise raised
        finally:
            raised = None  # its traceback holds this frame
            _run(waiting, handlers)


_MOST_TRIES: Final = 100
"""Attempts to restore the handlers. Each handler that raises meanwhile uses up one. A guess."""


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


_waiting: Final[dict[int, weakref.ref[Any]]] = {}
_CALL: Final[Callable[[functools.partial[Any]], Any]] = functools.partial.__call__
_numbers: Final = itertools.count()


def call_when_freed(of: object, *calls: functools.partial[Any]) -> None:
    """Make calls, one after another, when an object is freed.

    Args:
        of: the object.
        calls: partials of C functions. A Python function would let a signal handler run.
    """
    number = next(_numbers)
    chain = [*calls, functools.partial(_waiting.pop, number)]
    made = map(list, [map(_CALL, chain)])
    # Python passes the dead reference to the callback; `next` takes it as its unused default
    callback: Callable[[Any], object] = functools.partial(next, made)
    _waiting[number] = weakref.ref(of, callback)


_OWN: Final = (
    os.path.join(os.path.dirname(os.path.abspath(__file__)), ""),
    patches.__file__,
    signal_handlers.__file__,
)
"""Folders and files of the code between the program's calls and torch's calls, such as around a module's call."""


def unlink_own_frames(error: BaseException) -> None:
    """Remove the recorder's frames from the tracebacks of an error, its cause and its context.

    The first frame, the block's own, stays. The interpreter may hold it already.
    """
    for link in linked_errors(error):
        _unlink(link.__traceback__)


def _unlink(trace: TracebackType | None) -> None:
    while trace is not None:
        following = trace.tb_next
        while following is not None and following.tb_frame.f_code.co_filename.startswith(_OWN):
            following = following.tb_next
        if following is not trace.tb_next:
            trace.tb_next = following
        trace = following
