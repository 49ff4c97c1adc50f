"""Show on a terminal that long work is under way; where standard error is no terminal nothing is shown."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def import_rich() -> None:
    """Import what draws, with the state of Python's random generator put back; to be called before rich is used."""
    state = random.getstate()
    import rich.style  # noqa: F401 # the first import is what matters

    random.setstate(state)


AFTER_S: Final = 2.0
"""Work that is done sooner is not worth a line."""

_shown = threading.Lock()
"""Held by the work that is shown: what it calls shows nothing of its own."""


@contextlib.contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done and for how long, once it has taken two seconds; the line goes when it is done.

    Args:
        what: what is being done, such as ``"memwatch plan"``.

    Yields:
        A function that says which part of it is under way.
    """
    if sys.stderr is None or not sys.stderr.isatty() or not _shown.acquire(blocking=False):
        yield lambda part: None
        return
    import_rich()
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    console = Console(stderr=True, markup=False, highlight=False, force_jupyter=False)
    columns = (TextColumn(what), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    progress = Progress(*columns, console=console, transient=True)
    task = progress.add_task("", total=None)
    later = threading.Timer(AFTER_S, progress.start)
    later.daemon = True
    later.start()
    try:
        yield lambda part: progress.update(task, description=Text(part).plain)
    finally:
        later.cancel()
        later.join()  # it may be starting the line at this moment
        progress.stop()
        _shown.release()
