"""Errors of the program: notes on them, and those that they are linked to."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def add_note(error: BaseException, text: str) -> None:
    """Have a text shown below the traceback of an error; Python 3.10 shows none, so it is printed there."""
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:
        sys.stderr.write(f"{text}\n")


def linked_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all that are its cause or its context, each once."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            yield link
            waiting += [link.__cause__, link.__context__]
