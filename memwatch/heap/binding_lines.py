"""Where the text of a module gives a name its value: the line to edit of a global variable.

A running module stands somewhere else by the time somebody looks, as at the call of the optimizer's step.
"""

from __future__ import annotations

import dis
import functools
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import CodeType

_STORES: Final = frozenset({dis.opmap["STORE_NAME"], dis.opmap["STORE_GLOBAL"]})
_MODULES: Final = 16
"""How many modules' lines are remembered: few run at once."""


def binding_line(code: CodeType, name: str, line: int) -> int:
    """Return the line that gave a name its value: the last such line up to `line`, else the last of all.

    Args:
        code: the body of a module.
        name: the global variable.
        line: where the module stands; returned if its text does not bind the name, as a function's `global` does.
    """
    lines = _lines_of(code).get(name, ())
    return max((bound for bound in lines if bound <= line), default=max(lines, default=line))


@functools.lru_cache(_MODULES)
def _lines_of(code: CodeType) -> dict[str, tuple[int, ...]]:
    """Return the lines that bind each name; read from the bytes, for `dis` takes tens of times as long."""
    starts, raw = dict(dis.findlinestarts(code)), code.co_code
    found: dict[str, set[int]] = {}
    line, high = 0, 0
    for offset in range(0, len(raw), 2):
        line = starts.get(offset) or line
        operation, low = raw[offset], raw[offset + 1]
        if operation in _STORES:
            found.setdefault(code.co_names[high | low], set()).add(line)
        high = (high | low) << 8 if operation == dis.EXTENDED_ARG else 0
    return {name: tuple(lines) for name, lines in found.items()}
