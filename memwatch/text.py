"""Text of unknown origin, from the program or from a file: safe to print, to show in a notebook, to read as JSON."""

from __future__ import annotations

import html
import json
import re
from typing import Any, Final

from memwatch.errors import MemwatchError

# C0 and C1 controls, line and paragraph separators, bidirectional overrides (Trojan Source), lone surrogates
UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_STYLE: Final = "white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.3; font-family: monospace"
_MOST_LEVELS: Final = 64
"""Lists in lists. A guess: arguments of ops nest a few levels, and json itself overflows at about a thousand."""
_MOST_DIGITS: Final = 400
"""Python needs seconds for a number of a million digits (before 3.10.7). Floats have up to 309 before the point."""


def visible(text: str) -> str:
    r"""Return the text with unprintable characters as Python escapes, such as `\x1b` for ESC."""
    return UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)


def preformatted(text: str) -> str:
    """Return HTML that shows a text unchanged."""
    return f'<pre class="memwatch" style="{_STYLE}">{html.escape(text)}</pre>'


class ShownAsText:
    """Shows an object in a notebook as its text, also as an item of a list."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # IPython prefers a class's own `__repr__` (dataclasses have one) to an inherited method of this name
        cls._repr_pretty_ = cls._repr_pretty_  # type: ignore[method-assign]

    def _repr_html_(self) -> str:
        return preformatted(str(self))

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(str(self))


class JsonError(MemwatchError, ValueError):
    """The text is not JSON, or memwatch refuses it."""


def read_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        JsonError: the text is not JSON, is nested too deeply, or contains a number with too many digits.
    """
    try:
        value = json.loads(text, parse_int=_integer)
    except RecursionError:
        raise JsonError("its JSON is nested too deeply") from None
    except ValueError as error:  # UnicodeDecodeError is one
        raise JsonError(f"it is not JSON: {error}") from error
    _check_depth(value)
    return value


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits")
    return int(digits)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_MOST_LEVELS):
        level = [
            item
            for each in level
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, (dict, list))
        ] if isinstance(value, (dict, list)) else []  # fmt: skip
        if not level:
            return
    raise JsonError("its JSON is nested too deeply")
