"""Put signals off while memwatch's own books are in between two states.

A handler written in Python, as that of Ctrl-C, raises wherever the main thread is. A flush that it cuts in
two would lose rows, or leave the allocator channel closed; so it waits until the flush is done.

`signal.signal` and `signal.getsignal` would take the `repr` of a handler, to see if it is a member of an enumeration:
of asyncio's that is the main task, and so the text of every tensor in its result. The functions of C behind them do
not.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let the handlers of signals that arrive in the block run at its end, in their order."""
    waiting: list[tuple[int, Any]] = []
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # no other thread runs handlers
        for number in signal.valid_signals():
            handler = _signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
    try:
        for caught in handlers:
            _signal.signal(caught, lambda *arrived: waiting.append(arrived))
        yield
    finally:
        for caught, handler in handlers.items():
            _signal.signal(caught, handler)
        for arrived, frame in waiting:
            handlers[arrived](arrived, frame)
