"""The names that the body of a ``with`` block binds itself: they may go on holding what the block made."""

from __future__ import annotations

import dis
import sys
from typing import TYPE_CHECKING, Final

from memwatch.heap.frames import is_own_code

if TYPE_CHECKING:
    from types import FrameType

    from memwatch.leaks.exemptions import Exemptions

_STORES: Final = {
    "STORE_FAST",
    "STORE_DEREF",
    "STORE_NAME",
    "STORE_GLOBAL",
    "STORE_FAST_LOAD_FAST",
    "STORE_FAST_STORE_FAST",
}


def calling_frame() -> FrameType | None:
    """Return the innermost running call outside memwatch and contextlib."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        is_own_code(frame.f_code) or frame.f_code.co_filename.endswith("contextlib.py")
    ):
        frame = frame.f_back
    return frame


class NamesBoundInBlock:
    """Remembers where a block begins; keeps no frame alive."""

    def __init__(self) -> None:
        frame = calling_frame()
        self._frame_id = id(frame)
        self._code_id = id(frame.f_code) if frame else 0
        self._begin = frame.f_lasti if frame else -1

    def exempt(self, exempt: Exemptions) -> None:
        """Add the names bound since the beginning, if the block ends in the call in which it began."""
        frame = calling_frame()
        if frame is None or id(frame) != self._frame_id or id(frame.f_code) != self._code_id:
            return
        end = frame.f_lasti if frame.f_lasti > self._begin else sys.maxsize
        names: set[str] = set()
        for instruction in dis.get_instructions(frame.f_code):
            if self._begin < instruction.offset <= end and instruction.opname in _STORES:
                stored = instruction.argval
                names.update(stored if isinstance(stored, tuple) else (stored,))
        if frame.f_code.co_name == "<module>":
            exempt.globals |= {(id(frame.f_globals), name) for name in names}
        exempt.locals |= {(id(frame), name) for name in names}
