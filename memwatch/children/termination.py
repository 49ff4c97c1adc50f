"""Write a recording before SIGTERM or SIGHUP ends this process.

A pool of workers ends its processes by SIGTERM. SIGHUP comes when the terminal is closed or its connection is lost. By
default, both end a process at once. A handler in Python would run in the main thread, perhaps in the middle of a
write, and not at all while the main thread waits in C++ for a rank that is gone. So a thread waits on a pipe. Python's
handler in C writes into the pipe through the wakeup descriptor, whatever the main thread does; it does so only if some
handler in Python is set. The thread then writes the recording and ends the process by the same signal. memwatch leaves
a program alone that sets its own handler.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` takes the `repr` of a handler: see `uninterrupted`
import contextlib
import ctypes
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Final

from memwatch.own_code import OwnThread
from memwatch.signal_handlers import suppress

if TYPE_CHECKING:
    from collections.abc import Callable

_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
_NONE: Final = -1
_LONGEST_S: Final = 5.0
"""Seconds that the write may take. A disk that does not answer must not keep the process alive. A guess."""
_PAUSE_S: Final = 1.0
"""Seconds that the main thread waits while the other thread writes. A write takes milliseconds. A guess."""


class WriteBeforeTermination:
    """Call a function before SIGTERM or SIGHUP ends this process, unless the program handles or ignores that signal.

    Args:
        write: the function; it runs in a thread of its own.
    """

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write
        self._ask = self._asked = _NONE
        self._is_written = threading.Event()
        self._signals: list[int] = []

    def arrange(self) -> None:
        """Begin. Only the main thread may set a handler."""
        self._signals = [number for number in _SIGNALS if _signal.getsignal(number) == _signal.SIG_DFL]
        if not self._signals:
            return
        self._asked, self._ask = os.pipe()
        os.set_blocking(self._ask, False)
        before = signal.set_wakeup_fd(self._ask, warn_on_full_buffer=False)
        if before != _NONE:
            signal.set_wakeup_fd(before)
        OwnThread(target=self._wait, name="memwatch-termination", daemon=True).start()
        for number in self._signals:
            _signal.signal(number, self._terminated)
        _arranged.append(self)

    def restore(self) -> None:
        """Restore the default of the signals. Call it in the main thread, or in a fork, which has no thread of ours."""
        if self not in _arranged:
            return
        _arranged.remove(self)
        for number in self._signals:
            if self._is_ours(number):
                _signal.signal(number, _signal.SIG_DFL)
        wakeup = signal.set_wakeup_fd(_NONE)
        if wakeup != self._ask:
            signal.set_wakeup_fd(wakeup)
        os.close(self._ask)  # the end of the thread, which is still to close the other one

    def _is_ours(self, number: int) -> bool:
        return number in self._signals and bool(_signal.getsignal(number) == self._terminated)

    def _terminated(self, number: int, _: Any) -> None:
        # if it is not ours any more, the program's own handler has called this one, and the program may go on
        if self._is_ours(number):
            # Python's handler in C writes this byte too, unless the program has taken the wakeup descriptor
            with suppress(OSError):
                os.write(self._ask, bytes([number]))
            # the program ends here, as without memwatch; if the write needs this thread, it goes on after a while
            threading.Event().wait(_PAUSE_S)

    def _wait(self) -> None:
        while arrived := os.read(self._asked, 64):
            for number in arrived:
                if self._is_ours(number):
                    name = "memwatch-termination-write"
                    OwnThread(target=self._write_and_tell, name=name, daemon=True).start()
                    self._is_written.wait(_LONGEST_S)
                    _die(number)
        os.close(self._asked)

    def _write_and_tell(self) -> None:
        with contextlib.suppress(Exception):
            self._write()
        self._is_written.set()


def _die(number: int) -> None:
    set_in_c = ctypes.pythonapi.PyOS_setsig  # `signal.signal` is for the main thread alone
    set_in_c.argtypes = (ctypes.c_int, ctypes.c_void_p)
    set_in_c.restype = ctypes.c_void_p
    set_in_c(number, None)
    os.kill(os.getpid(), number)


_arranged: Final[list[WriteBeforeTermination]] = []


_forking: Final = threading.local()


def _before_fork() -> None:
    # a fork shares the pipe until it closes its ends: the parent would take a signal of the fork for its own
    if _arranged:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _after_fork() -> None:
    mask = _forking.__dict__.pop("mask", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _forked() -> None:
    while _arranged:
        each = _arranged[0]
        each.restore()
        os.close(each._asked)
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_forked)
