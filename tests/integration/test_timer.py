"""The thread that writes the file now and then: the objects that it holds, and how long."""

from __future__ import annotations

import gc
import threading
import weakref

from memwatch.own_code import OwnThread
from memwatch.record import flush
from memwatch.record.flush import Timer


class Recorder:
    def flush(self):
        """Do nothing: the thread never comes to it."""


def test_a_timer_that_is_over_keeps_nothing_while_its_thread_is_still_ending(monkeypatch):
    """The function's objects go at once, though the thread wakes up some time after it was stopped."""
    monkeypatch.setattr(flush, "_END_WITHIN_S", 0.0)
    recorder = Recorder()
    repeated = Timer(1000.0, recorder.flush)
    repeated.start()
    reference = weakref.ref(recorder)
    del recorder
    gc.disable()
    try:
        assert reference() is not None
        repeated.stop()
        assert reference() is None
    finally:
        gc.enable()


def test_the_thread_of_a_timer_that_is_over_has_ended():
    """A program that counts its threads after the block finds none of memwatch's."""
    before = set(threading.enumerate())
    for _ in range(20):
        repeated = Timer(1000.0, Recorder().flush)
        repeated.start()
        repeated.stop()
        new = [each for each in threading.enumerate() if isinstance(each, OwnThread)]
        assert not set(new) - before
