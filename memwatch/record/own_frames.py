"""Take memwatch's own frames out of the traceback of a program's error, so that it reads as without memwatch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from memwatch import signal_handlers
from memwatch.errors import linked_errors

if TYPE_CHECKING:
    from types import TracebackType

_OWN: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), ""), signal_handlers.__file__
"""The code that runs between the program's calls and torch's: around a module, an op, a checkpoint's second run."""


def unlink_own_frames(error: BaseException) -> None:
    """Take the frames of the recorder out of the tracebacks of an error, its cause and its context.

    The first frame stays, which is that of the block: the interpreter may hold it already.
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
