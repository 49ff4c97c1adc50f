"""Start the monitor (MEMWATCH=monitor) or the guard for out of memory (MEMWATCH=oom) when torch has been imported."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memwatch.cli.common import say
from memwatch.errors import MemwatchError
from memwatch.job import JobPlace, named_for
from memwatch.monitor.watch import Monitor, monitor
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Mapping


def monitor_this_process(options: Mapping[str, Any]) -> None:
    """Start the monitor, and print its report when the process ends. If it cannot start, the program still runs.

    Args:
        options: the options in MEMWATCH: `output` (a file for the samples), `interval_s` and `quiet`. `native` is
            ignored here, because it was obeyed when Python started.
    """
    output = options.get("output")
    try:
        path = None if output is None else named_for(JobPlace.here(), output).absolute()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        watch = monitor(path, interval_s=options.get("interval_s", 10.0))
    except (MemwatchError, OSError) as error:
        say(f"process {os.getpid()} is not watched: {error}")
        return
    atexit.register(_end, watch, quiet=bool(options.get("quiet")))


def report_when_memory_runs_out(options: Mapping[str, Any]) -> None:
    """Start a guard, which writes a report when memory runs out. Until then the program runs as without it.

    Args:
        options: the options in MEMWATCH: `output` (the name of the report without its suffixes).
    """
    from memwatch.monitor.guard import start_guard

    output = options.get("output")
    try:
        start_guard(None if output is None else Path(output).absolute())
    except Exception as error:  # the program must run on any system, even if the guard cannot
        pass_on(error)
        say(f"process {os.getpid()} has no report when its memory runs out: {error}")


def _end(watch: Monitor, *, quiet: bool) -> None:
    if not watch.is_running:  # this is a fork of the monitored process
        return
    watch.stop()
    if quiet:
        return
    # the program may have closed stderr, or set it to None
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"memwatch: {watch.report()}")
        sys.stderr.flush()
