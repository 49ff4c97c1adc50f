"""One pause of gc for all of memwatch: pauses that overlap, in threads or in a signal's handler, end with the last."""

from __future__ import annotations

import gc
import signal
import threading

import pytest
import torch

import memwatch
from memwatch import gc_pause as pause
from memwatch.gc_pause import is_gc_paused, pause_gc, resume_gc


def test_the_last_of_two_pauses_switches_collection_on():
    """Whichever of them began first."""
    assert gc.isenabled()
    first, others = pause_gc(), []
    thread = threading.Thread(target=lambda: others.append(pause_gc()))
    thread.start()
    thread.join()
    resume_gc(first)
    assert not gc.isenabled()
    resume_gc(others[0])
    assert gc.isenabled()


def test_what_the_program_switched_off_stays_off():
    gc.disable()
    try:
        resume_gc(pause_gc())
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_look_for_holders_leaves_the_pause_of_a_check_on(monkeypatch):
    """A check in another thread needs collection off beyond the look."""
    seen, pauses = [], []

    def take(self, frame):
        pauses.append(pause_gc())  # as a check in another thread that begins during the sample
        seen.append(gc.isenabled())

    monkeypatch.setattr("memwatch.record.holders.sample.Sample.take", take)
    with memwatch.profile():
        kept = torch.ones(50_000)
    del kept
    assert seen
    assert not any(seen)
    assert not gc.isenabled()
    for each in pauses:
        resume_gc(each)
    assert gc.isenabled()


def test_a_pause_that_an_exception_cut_short_does_not_last():
    """Ctrl-C may come between the pause and the `try` that would end it."""

    def search():
        pause_gc()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search()
    assert not is_gc_paused()
    assert gc.isenabled()


@pytest.mark.parametrize("function", ["isenabled", "disable", "enable"])
def test_a_handler_may_pause_amid_a_pause(function, monkeypatch):
    """Collection is as it was when both are over, wherever the handler ran."""
    original = getattr(gc, function)
    left = [0]

    class Interrupted:
        def __getattr__(self, name):
            if name == function and left:
                left.pop()
                signal.raise_signal(signal.SIGUSR1)
            return getattr(gc, name)

    def handler(number, frame):
        resume_gc(pause_gc())

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        monkeypatch.setattr(pause, "gc", Interrupted())
        paused = pause_gc()
        assert not gc.isenabled()
        resume_gc(paused)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert gc.isenabled()
    assert not left
    assert original is getattr(gc, function)
