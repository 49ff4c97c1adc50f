"""Put signals off while memwatch's own books are in between two states.

A handler written in Python, as that of Ctrl-C, raises wherever the main thread is. A flush that it cuts in
two would lose rows, or leave the allocator channel closed; so it waits until the flush is done.
"""

from __future__ import annotations

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
            handler = signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
    try:
        for caught in handlers:
            signal.signal(caught, lambda *arrived: waiting.append(arrived))
        yield
    finally:
        for caught, handler in handlers.items():
            signal.signal(caught, handler)
        for arrived, frame in waiting:
            handlers[arrived](arrived, frame)
