"""Watch the memory of this process because MEMWATCH=monitor or MEMWATCH=oom asked for it, once torch is imported."""

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
    """Start the monitor, and print its report when the process ends. If it cannot start, the process runs on.

    Args:
        options: what MEMWATCH sets: `output`, a file for the samples, `interval_s` and `quiet`.
            `native` has done its work by now.
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
    """Have a report written when memory runs out. The healthy program runs as it would without this.

    Args:
        options: what MEMWATCH sets: `output`, the name of the report without its suffixes.
    """
    from memwatch.monitor.guard import start_guard

    output = options.get("output")
    try:
        start_guard(None if output is None else Path(output).absolute())
    except Exception as error:  # the program runs on, whatever this system is like
        pass_on(error)
        say(f"process {os.getpid()} has no report when its memory runs out: {error}")


def _end(watch: Monitor, *, quiet: bool) -> None:
    if not watch.is_running:  # this is a fork of the monitored process
        return
    watch.stop()
    if quiet:
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed or taken away by the program
        sys.stderr.write(f"memwatch: {watch.report()}")
        sys.stderr.flush()
