"""Pages to share: every path becomes a number; source text and the command line are left out."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from memwatch.words.places import split_site

if TYPE_CHECKING:
    from collections.abc import Iterable

ABSOLUTE_PATH: Final = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[/\\](?:[^\s/\\:'\"]+[/\\])+[^\s:'\"]*")
PUBLIC_META: Final = frozenset(
    {
        "allocator",
        "complete",
        "reserved_bytes",
        "end_ns",
        "intercept",
        "memwatch",
        "python",
        "recorder",
        "start_ns",
        "threads",
        "torch",
    }
)
"""Metadata that a page without sources still shows."""


class PathHider:
    """Removes the paths of the capture and all absolute paths from texts."""

    def __init__(self, files: Iterable[str]) -> None:
        known = sorted({file for file in files if file}, key=lambda file: (-len(file), file))
        self._alias = {file: f"file-{number}" for number, file in enumerate(sorted(known), start=1)}
        # the longest first: `/a/b` would match in `/a/bc.py` and leave the rest of that path in the page
        self._known = _any_of(known)
        # a sentence may name a file without its folders, or by its path from the current one: `train.py:12`
        name_of = {file: PurePath(file).name for file in known}
        count = Counter(name_of.values())
        self._alias_of_name = {
            name: self._alias[file] if count[name] == 1 else "(file)"
            for file, name in name_of.items()
            if name
        }
        self._short = _any_of(self._alias_of_name, before=r"(?<![\w./\\-])(?:[\w.-]+/)*", after=r"(?=:\d)")

    def __call__(self, text: str) -> str:
        """Return a text without paths."""
        if self._known is not None:
            text = self._known.sub(lambda match: self._alias[match[0]], text)
        if self._short is not None:
            text = self._short.sub(lambda match: self._alias_of_name[match["any"]], text)
        return ABSOLUTE_PATH.sub("(path)", text)


def _any_of(texts: Iterable[str], *, before: str = "", after: str = "") -> re.Pattern[str] | None:
    longest_first = sorted(texts, key=lambda text: (-len(text), text))
    if not longest_first:
        return None
    return re.compile(f"{before}(?P<any>{'|'.join(map(re.escape, longest_first))}){after}")


def file_of(line: str) -> str:
    """Return the file of a `file:line`."""
    return split_site(line)[0]
