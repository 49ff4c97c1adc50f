"""Text as a piece of HTML: how an object shows itself in a notebook. It has no script and loads nothing."""

from __future__ import annotations

import html
from typing import Any, Final

_STYLE: Final = "white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.3; font-family: monospace"


def preformatted(text: str) -> str:
    """Return text, every character of which is shown as it is."""
    return f'<pre class="memwatch" style="{_STYLE}">{html.escape(text)}</pre>'


class ShownAsText:
    """Shows an object in a notebook as its text, also as an item of a list."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # IPython takes a class's own `__repr__`, as dataclasses have one, before an inherited method of this name
        cls._repr_pretty_ = cls._repr_pretty_  # type: ignore[method-assign]

    def _repr_html_(self) -> str:
        return preformatted(str(self))

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(str(self))
