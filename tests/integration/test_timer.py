"""The thread that writes the file now and then: what it holds, and until when."""

from __future__ import annotations

import gc
import weakref

from memwatch.record.timer import Timer


class Recorder:
    def flush(self):
        """Do nothing: the thread never comes to it."""


def test_a_timer_that_is_over_keeps_nothing_while_its_thread_is_still_ending():
    """What the function refers to may go at once: the thread wakes up some time after it was told to stop."""
    recorder = Recorder()
    timer = Timer(1000.0, recorder.flush)
    timer.start()
    reference = weakref.ref(recorder)
    del recorder
    gc.disable()
    try:
        assert reference() is not None
        timer.stop()
        assert reference() is None
    finally:
        gc.enable()
