"""Show on a terminal which way is being tried."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], object]]:
    """Yield a function that shows the name of the way being tried; silent unless standard error is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda name: None
        return
    console = Console(stderr=True, markup=False, highlight=False)
    columns = (TextColumn("memwatch fit"), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("looking at the step", total=None)
        tried = 0

        def say(name: str) -> None:
            nonlocal tried
            tried += 1
            shown.update(task, description=Text(f"{tried}: {name}").plain)

        yield say
