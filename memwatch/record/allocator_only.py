"""The allocator's account of one call, with nothing else recorded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from memwatch.capture.recording import Recording
from memwatch.record.clock import Clock, ticks
from memwatch.record.python.allocator import AllocatorChannel
from memwatch.record.tables.strings import Strings

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.capture.capture import Capture


def allocator_only(function: Callable[[], Any]) -> Capture | None:
    """Call a function and give a capture of its allocator events; None if a profiler is already running."""
    recording, strings, clock = Recording(None), Strings(), Clock()
    channel = AllocatorChannel(strings, clock, [0], lambda kind, text: None)
    start_ns = clock.to_ns(ticks())
    started_s = time.time()
    channel.start(lambda rows: recording.add({"allocator": rows}, [], []))
    if channel.stepped_aside:
        return None
    try:
        result = function()
    finally:
        channel.stop()
    del result
    recording.add({}, strings.texts, [])
    recording.meta = {
        "start_ns": start_ns,
        "end_ns": clock.to_ns(ticks()),
        "started_s": started_s,
        "device": "cpu",
    }
    return recording.capture()
