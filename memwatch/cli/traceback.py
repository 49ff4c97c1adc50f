"""Show a program's traceback as the program's: without the frames of memwatch around and between its own."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Final

_HOME: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_AROUND: Final = tuple(os.path.join(_HOME, part, "") for part in ("cli", "record"))
"""Folders whose code stands around and between the program's; what the program itself calls is elsewhere."""


def hide_own_frames(error: BaseException) -> BaseException:
    """Take memwatch's frames out of the traceback that an error is shown with when the process ends on it.

    Args:
        error: what the program raised; its frames up to here stay, those added by raising it again do not.

    Returns:
        The error.
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = _programs_own(link.__traceback__)
            waiting += [link.__cause__, link.__context__]
    shown, previous = error.__traceback__, sys.excepthook

    def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        trace = shown if value is error else trace
        previous(kind, value.with_traceback(trace), trace)

    sys.excepthook = excepthook
    return error


def _programs_own(trace: TracebackType | None) -> TracebackType | None:
    frames: list[TracebackType] = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_AROUND):
            frames.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for each in reversed(frames):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept
