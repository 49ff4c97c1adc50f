"""Text from the program or from a file, made safe to print on a terminal or to show in a notebook."""

from __future__ import annotations

import html
import re
from typing import Any, Final

# C0 and C1 controls, line and paragraph separators, bidirectional overrides (Trojan Source), lone surrogates
UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""Return the text with unprintable characters as Python escapes, such as `\x1b` for ESC."""
    return UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)


_STYLE: Final = "white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.3; font-family: monospace"


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


__all__ = ["UNPRINTABLE", "visible"]
