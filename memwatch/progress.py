"""Show on a terminal that long work is running. The line appears only if standard error is a terminal."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def import_rich() -> None:
    """Import rich, and restore the state of Python's random generator. Call this before rich is used."""
    state = random.getstate()
    import rich.style  # noqa: F401 # the first import draws random numbers

    random.setstate(state)


AFTER_S: Final = 2.0
"""Seconds. Shorter work gets no line. A guess."""

_shown = threading.Lock()
"""Held by the work that is shown, so that inner work shows nothing."""


@contextlib.contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Show a line with the work and its duration after two seconds. The line disappears at the end.

    Args:
        what: the name of the work, such as ``"memwatch plan"``.

    Yields:
        A function that shows the name of the present part of the work.
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
