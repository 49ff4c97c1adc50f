"""Hide memwatch's own frames in the traceback of a program, so that it looks as without memwatch."""

from __future__ import annotations

import itertools
import os
import sys
from types import TracebackType
from typing import Final

from memwatch.error_notes import linked_errors

_HOME: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_AROUND: Final = tuple(os.path.join(_HOME, part, "") for part in ("cli", "record"))
"""Folders of memwatch whose code runs around and between the program's. Code of memwatch that the program itself
calls is in other folders and stays in the traceback."""


def hide_own_frames(error: BaseException) -> BaseException:
    """Remove memwatch's frames from the traceback that is printed when the process ends with this error.

    Args:
        error: the exception of the program. Frames that are added when it is raised again are hidden too.

    Returns:
        The same error.
    """
    for link in linked_errors(error):
        link.__traceback__ = _programs_own(link.__traceback__)
    shown, previous = error.__traceback__, sys.excepthook

    # raising the error again adds frames to its traceback; the hook prints the traceback that was cleaned here
    def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        trace = shown if value is error else trace
        previous(kind, value.with_traceback(trace), trace)

    sys.excepthook = excepthook
    return error


def _programs_own(trace: TracebackType | None) -> TracebackType | None:
    """Return a copy of a traceback without memwatch's frames, those before the program included."""
    frames: list[TracebackType] = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    shown = [each for each in frames if not _is_in(each, _AROUND)]
    # the part of memwatch that started the program, whichever it was
    after_start = list(itertools.dropwhile(lambda each: _is_in(each, _HOME), shown))
    if not after_start and frames and not _is_in(frames[-1], _AROUND):
        # an error of memwatch's own; if the traceback ends in `cli`, the program does not compile
        after_start = shown
    kept: TracebackType | None = None
    for each in reversed(after_start):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept


def _is_in(trace: TracebackType, folders: str | tuple[str, ...]) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(folders)
