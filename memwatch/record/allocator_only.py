"""Record the allocator's events of one call, and nothing else."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from memwatch.capture.recording import Recording
from memwatch.errors import MemwatchError
from memwatch.record import native, python
from memwatch.record.allocator import AllocatorChannel
from memwatch.record.backend import Block
from memwatch.record.clock import Clock, ticks
from memwatch.record.tables.rows import Strings, new_op_counter
from memwatch.record.threads import StartedThreads

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.capture.capture import Capture


def allocator_only(function: Callable[[], Any]) -> Capture:
    """Call a function and return a capture of its allocator events. torch runs as without memwatch.

    Raises:
        MemwatchError: this torch provides no events, or a profiler of the program receives them.
    """
    recording, clock = Recording(None), Clock()
    block = Block(
        Strings(), new_op_counter(), clock, is_estimate=False, note=lambda kind, text: None, thread_names=[]
    )
    events = (native.backend() or python.BACKEND).allocator_events(block)
    if events is None:
        raise MemwatchError(
            "this torch does not hand out the allocator's events, so there is nothing to compare with"
        )
    channel = AllocatorChannel(events, block.op_counter, block.note)
    start_ns = clock.to_ns(ticks())
    started_s = time.time()
    channel.start(lambda rows: recording.add({"allocator": rows}, [], []))
    if channel.stepped_aside:
        raise MemwatchError(
            "a torch profiler is running and holds the allocator's events; call verify() outside it"
        )
    threads = StartedThreads(block.thread_names, events)
    threads.start()
    try:
        result = function()
    finally:
        threads.stop()
        channel.stop()
    del result
    recording.add({}, block.strings.texts, [])
    recording.meta = {
        "start_ns": start_ns,
        "end_ns": clock.to_ns(ticks()),
        "started_s": started_s,
    }
    return recording.capture()
