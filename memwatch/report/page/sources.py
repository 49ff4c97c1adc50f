"""The program's own lines on the page: those on the call stacks of its storages, and the lines around them.

Each line is stored once; stacks and the section of sources look it up by file and number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pandas as pd

from memwatch.analysis.texts import TEXT
from memwatch.report.page.columns import pack_frame

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.report.page.code import CodeReader
    from memwatch.report.page.columns import Block, Words

AROUND: Final = 2
"""So many lines before and after are shown, too."""

MOST_LINES: Final = 5_000


def pack_sources(lines: Iterable[tuple[str, int]], words: Words, code: CodeReader | None) -> Block:
    """Return the text of these lines and of those around them; empty where sources stay out of the page.

    Args:
        lines: file and number of each line.
        words: the texts of the page.
        code: reads sources, None to leave them out.
    """
    wanted = sorted({(file, number) for file, number in lines if number > 0})[:MOST_LINES]
    near = {
        (file, number + by) for file, number in wanted for by in range(-AROUND, AROUND + 1) if number + by > 0
    }
    told = [] if code is None else [(*each, text) for each in sorted(near) if (text := code.indented(*each))]
    table = pd.DataFrame(told, columns=["file", "line", "text"], dtype=object)
    return pack_frame(table.astype({"file": TEXT, "line": "int64", "text": TEXT}), words, delta=("line",))
