"""Windows of allocator events whose rows cannot be written, because memory has run out."""

from __future__ import annotations

import numpy as np

from memwatch.record import allocator
from memwatch.record.allocator import AllocatorChannel
from memwatch.record.backend import Window
from memwatch.record.tables.rows import new_op_counter


class Events:
    """A backend whose every window has four events."""

    is_open = True
    lost_events = 0

    def open(self):
        return True

    def cut(self):
        return [Window(0, 1, 0, np.zeros((4, 6), dtype=np.int64))]

    def close(self):
        return []


def test_a_window_that_was_written_in_part_shares_its_number_with_no_other(monkeypatch):
    monkeypatch.setattr(allocator, "_ROWS_AT_ONCE", 2)
    numbers = []

    def emit(rows):
        if len(numbers) == 1:
            numbers.append(None)
            raise MemoryError
        numbers.append(int(rows[0, -1]))

    channel = AllocatorChannel(Events(), new_op_counter(), lambda kind, text: None)
    channel.start(emit)
    try:
        channel.cut()
        channel.cut()
    finally:
        channel.stop()
    assert numbers == [0, None, 1, 1]
    assert channel.windows[::5] == [1]
    assert channel.lost_events == 4
