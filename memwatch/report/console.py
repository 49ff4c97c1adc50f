"""Text for a terminal. It keeps to the terminal's width, colours and encoding.

`fragment` turns such text into HTML with its colours, for notebooks.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from memwatch.kinds.roles import CATEGORY_OF
from memwatch.text import visible
from memwatch.words.places import current_folder

if TYPE_CHECKING:
    from rich.console import RenderableType

DEFAULT_WIDTH: Final = 100
"""Characters of a line if the output is no terminal. A guess."""
BLOCK: Final = "█"
SLIVER: Final = "▏"
ELLIPSIS: Final = "…"
# each is replaced by a single character, so that columns stay aligned
_ASCII: Final = str.maketrans(
    {BLOCK: "#", ELLIPSIS: "~", "─": "-", "━": "-", "│": "|", "├": "|", "└": "`", SLIVER: "."}
)
NOTEBOOK_WIDTH: Final = 110
"""Characters in a line that a cell of a notebook shows without a scroll bar. A guess."""
_FORMAT: Final = (
    '<pre class="memwatch" style="overflow-x: auto; line-height: 1.3; font-size: 13px; '
    "font-family: Menlo, 'DejaVu Sans Mono', Consolas, monospace\">{code}</pre>"
)
# Text without a style has the colour of the notebook. The first two colours are only mixed for dim text.
_THEME: Final = TerminalTheme(
    (236, 236, 236),
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


_WORD_COLOR: Final = re.compile(rf'(?<=style=")color: (#[0-9a-f]{{6}})(?![^>]*>[{BLOCK}{SLIVER}])')
"""The colour of a word in HTML. Bars keep their own colours, which only need to be told apart."""
_INK_PERCENT: Final = 55
"""How much of the notebook's own text colour is in a coloured word. No fixed colour has a contrast of 4.5 to both a
white and a dark page. A test computes the contrast of the mix for light and dark themes: 45 % is too little."""


def category_style(category: str) -> str:
    """Return the colour of a category in a terminal, as `rich` names it; "" for other groups."""
    row = CATEGORY_OF.get(category)
    return "" if row is None else row.terminal_color


def wants_color() -> bool:
    """Return True if standard output is a terminal, and its user has not switched colours off (https://no-color.org)."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()  # None in a service without a console
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def line_width(width: int | None) -> int:
    """Return the characters of a line: `width`, COLUMNS, the terminal's width or 100, in this order; at least 40."""
    return max(width or shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns, 40)


def to_text(*parts: RenderableType, width: int | None = None, color: bool | None = None) -> str:
    """Return parts as text, one below the other.

    Args:
        parts: texts, tables and anything else that `rich` prints.
        width: characters in a line; see `line_width` for the default.
        color: whether to write colour codes; see `wants_color` for the default.

    Returns:
        Text that standard output can encode. Without colours, lines have no trailing blanks.
    """
    colored = wants_color() if color is None else color
    out = io.StringIO()
    console = Console(
        file=out,
        width=line_width(width),
        force_terminal=colored,
        force_jupyter=False,  # rich would show the text in the notebook itself, and leave the file empty
        color_system="standard" if colored else None,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
        _environ={},
    )
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Code))
    text = "\n".join(line.rstrip() for line in out.getvalue().split("\n"))
    return encodable(text, getattr(sys.stdout, "encoding", None) or "utf-8")


def encodable(text: str, encoding: str) -> str:
    """Return the text if an encoding can hold it, otherwise the text in ASCII.

    Drawing characters become similar ASCII characters. All other characters become escapes.
    """
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        plain = text.translate(_ASCII)
        return plain.encode("ascii", "backslashreplace").decode("ascii")
    return text


def name(text: str, style: str = "") -> Text:
    """Return a name from the capture as text that has no effect as markup or as escape codes."""
    return Text(visible(text), style=style, overflow="ellipsis", no_wrap=True)


def clip(text: str, characters: int = 400) -> str:
    """Return text from the capture, cut to so many characters. The default is a guess."""
    shown = visible(text)
    return shown if len(shown) <= characters else shown[: characters - 1] + ELLIPSIS


class Code(Text):
    """Lines of Python that a user copies. `to_text` prints them whole, because a cut or wrapped line may not run.

    Args:
        lines: the lines.
        indent: blanks before each line.
    """

    def __init__(self, lines: str, indent: int) -> None:
        super().__init__("\n".join(" " * indent + visible(line) for line in lines.split("\n")))


def head(text: str, width: int) -> Text:
    """Return a name. If it is too long, keep its beginning."""
    return name(clip(text, max(width, 8)))


def tail(text: str, width: int) -> Text:
    """Return a path without the current folder. If it is too long, keep its end."""
    folder = current_folder()
    shown = visible(text.removeprefix(f"{folder}{os.sep}") if folder else text)
    width = max(width, 8)
    return name(shown if len(shown) <= width else ELLIPSIS + shown[len(shown) - width + 1 :])


def middle(text: str, width: int) -> Text:
    """Return a name. If it is too long, keep its beginning, which names the thing, and its end, which has the place."""
    shown = visible(text)
    width = max(width, 8)
    if len(shown) > width:
        at_end = (width - 1) // 2
        shown = shown[: width - 1 - at_end] + ELLIPSIS + shown[len(shown) - at_end :]
    return name(shown)


def bar(ratio: float, width: int, style: str = "") -> Text:
    """Return a share as a bar of whole blocks. A share above 0 that rounds to no block is a thin line."""
    filled = round(max(0.0, min(1.0, ratio)) * width)
    blocks = SLIVER if ratio > 0 and not filled else BLOCK * filled
    return Text(blocks, style=style, no_wrap=True, overflow="crop")


def fragment(text: str) -> str:
    """Return text with colour codes of a terminal as HTML: one element, without scripts or frames."""
    console = Console(
        record=True,
        file=io.StringIO(),
        force_terminal=True,
        force_jupyter=False,
        color_system="standard",
        highlight=False,
    )
    console.print(Text.from_ansi(text), soft_wrap=True)
    html = console.export_html(theme=_THEME, code_format=_FORMAT, inline_styles=True)
    return _WORD_COLOR.sub(rf"color: \1; color: color-mix(in srgb, currentColor {_INK_PERCENT}%, \1)", html)
