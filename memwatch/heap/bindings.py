"""Where a function binds its variables anew: what one held before it may hold no more."""

from __future__ import annotations

import dis
import functools
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import CodeType

_BINDING: Final = ("STORE_FAST", "DELETE_FAST", "STORE_DEREF", "DELETE_DEREF")


def next_binding_line(code: CodeType, name: str, line: int) -> int | None:
    """Return the first line of a function, from a line on, that binds a variable or deletes it; None for none."""
    lines = _binding_lines(code).get(name.lstrip("*"), [])
    place = bisect_left(lines, line)
    return lines[place] if place < len(lines) else None


@functools.lru_cache(maxsize=1024)
def _binding_lines(code: CodeType) -> dict[str, list[int]]:
    found: dict[str, set[int]] = {}
    line = code.co_firstlineno
    starts = dict(dis.findlinestarts(code))
    for instruction in dis.get_instructions(code):
        line = starts.get(instruction.offset) or line
        if not instruction.opname.startswith(_BINDING):
            continue
        names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        for name in names:
            found.setdefault(name, set()).add(line)
    return {name: sorted(lines) for name, lines in found.items()}
