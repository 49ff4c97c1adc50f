"""Where the text of a module gives a name its value: the line to edit of a global variable.

The current line of a running module is another one when memwatch searches, such as the call of the optimizer's step.
"""

from __future__ import annotations

import dis
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from types import CodeType

_STORES: Final = frozenset({dis.opmap["STORE_NAME"], dis.opmap["STORE_GLOBAL"]})
_MODULES: Final = 16
"""Number of modules whose lines are remembered. A guess: few modules run at once."""
_BINDS: Final = re.compile(r"^(?:(?:class|def|async def) +(\w+)|(\w+) *(?::[^=\n]+)?=(?!=))", re.MULTILINE)
"""A statement at the beginning of a line that gives a name its value."""
_LONGEST_SOURCE: Final = 1 << 21
"""Bytes. memwatch does not read a longer source file. A guess."""


def binding_line(code: CodeType, name: str, line: int) -> int:
    """Return the line that gave a name its value: the last such line up to `line`, else the last of all.

    Args:
        code: the body of a module.
        name: the global variable.
        line: the module's current line. It is returned if the module's own text does not bind the name, because a
            function does so with `global`.
    """
    lines = _lines_of(code).get(name, ())
    return max((bound for bound in lines if bound <= line), default=max(lines, default=line))


@functools.lru_cache(_MODULES)
def _lines_of(code: CodeType) -> dict[str, tuple[int, ...]]:
    """Return the lines that bind each name; read from the bytes, because `dis` takes tens of times as long."""
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


def line_in_source(file: str, name: str, line: int) -> int:
    """Return the line of an imported module's source that gives a name its value: the body itself is gone.

    Args:
        file: the source.
        name: the global variable.
        line: returned where no statement at the beginning of a line binds the name.
    """
    return _lines_in(file).get(name, line)


@functools.lru_cache(_MODULES)
def _lines_in(file: str) -> dict[str, int]:
    """Return the last line that binds each name."""
    try:
        path = Path(file)
        # a script may come through a pipe
        is_source = path.is_file() and path.stat().st_size <= _LONGEST_SOURCE
        source = path.read_text(encoding="utf-8") if is_source else ""
    except (OSError, ValueError) as error:  # the file is missing, or is not text
        pass_on(error)
        return {}
    found: dict[str, int] = {}
    line, position = 1, 0
    for match in _BINDS.finditer(source):
        line += source.count("\n", position, match.start())
        position = match.start()
        found[match[1] or match[2]] = line
    return found
