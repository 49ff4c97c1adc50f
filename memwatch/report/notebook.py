"""The texts of a terminal as pieces of HTML with their colours, for notebooks."""

from __future__ import annotations

import io
from typing import Final

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

WIDTH: Final = 110
"""Characters in a line: what a cell of a notebook shows without breaking."""

_FORMAT: Final = (
    '<pre class="memwatch" style="overflow-x: auto; line-height: 1.3; '
    "font-family: Menlo, 'DejaVu Sans Mono', Consolas, monospace\">{code}</pre>"
)

# These middle tones are readable on white and on black. The other colours are those of the page.
_THEME: Final = TerminalTheme(
    (255, 255, 255),
    (0, 0, 0),
    [
        (110, 110, 110), (200, 60, 60), (45, 140, 60), (165, 125, 0),
        (60, 110, 210), (165, 80, 190), (0, 140, 150), (125, 125, 125),
    ],
    [
        (130, 130, 130), (225, 90, 80), (70, 160, 85), (190, 145, 20),
        (85, 135, 230), (190, 105, 215), (30, 160, 170), (140, 140, 140),
    ],
)  # fmt: skip


def fragment(text: str) -> str:
    """Return text with colour codes of a terminal as HTML: one element, without scripts or frames."""
    console = Console(
        record=True,
        file=io.StringIO(),
        width=10 * WIDTH,
        force_terminal=True,
        force_jupyter=False,
        color_system="standard",
        highlight=False,
    )
    console.print(Text.from_ansi(text), soft_wrap=True)
    return console.export_html(theme=_THEME, code_format=_FORMAT, inline_styles=True)
