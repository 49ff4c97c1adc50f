"""A context manager for loops that accelerate prepares, the twin of `Accelerator.profile`.

with memwatch.integrations.accelerate.profile(accelerator, page="peak.html") as prof:
    for batch in loader:
        ...
        optimizer.step()
        prof.step()
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from memwatch.integrations.training import Training

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from accelerate import Accelerator

    from memwatch.profile import Profile


@contextlib.contextmanager
def profile(
    accelerator: Accelerator,
    path: str | os.PathLike[str] | None = None,
    *,
    page: str | os.PathLike[str] | None = None,
    schedule: Any = None,
    log_steps: bool = True,
    **options: Any,
) -> Iterator[Profile]:
    """Record a block in every process of an accelerator, and log the peak with its trackers.

    Args:
        accelerator: its trackers get the figures, from the main process.
        path: the file of the capture, which may hold `{rank}`, `{pid}` and `{host}`; None keeps it in memory.
        page: the file of the page, written at the end; by default there is no page.
        schedule: the steps to record; see `memwatch.profile`.
        log_steps: whether the trackers get the peak of the steps at `step()`, as often as that is cheap.
        options: the other options of `memwatch.profile`.

    Yields:
        The recording. `step()` marks an iteration. You can read the recording after the block.
    """
    log = accelerator.log if log_steps and accelerator.is_main_process else None
    training = Training(path, page=page, schedule=schedule, log=log, **options)
    recording = training.begin()
    try:
        yield recording
    except BaseException:
        training.end()
        raise
    if figures := training.end(together=True):
        accelerator.log(figures)
