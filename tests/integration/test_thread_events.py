"""Events of threads while the block's thread waits for them. The events are stored as they come, and then dropped."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import memwatch
from memwatch.capture.file import load
from memwatch.own_code import OwnThread
from memwatch.record import native, session
from memwatch.record.allocator import StartedThreads, cpu_time_ns
from memwatch.record.backend import Block
from memwatch.record.clock import Clock
from memwatch.record.tables.rows import Strings, new_op_counter

pytestmark = pytest.mark.skipif(
    native.backend() is None, reason="only the native recorder hears other threads"
)
COUNT = 50_000


def in_thread(work, name="worker"):
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()


def until(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def block_and_events():
    block = Block(Strings(), new_op_counter(), Clock(), is_estimate=False, note=print, thread_names=[])
    return block, native.backend().allocator_events(block)


def test_what_a_thread_allocates_is_in_the_file_before_it_ends(tmp_path, monkeypatch):
    """A process that is killed meanwhile loses no more than since the timer's last turn."""
    monkeypatch.setattr(session, "FLUSH_S", 0.02)
    path = tmp_path / "run.memwatch"
    written = []

    def work():
        kept = torch.ones(COUNT)
        written.append(until(lambda: 4 * COUNT in load(path).tables["allocator"]["nbytes"]))
        del kept

    with memwatch.profile(path) as prof:
        in_thread(work)
    assert written == [True]
    assert prof.peak_increase_bytes == 4 * COUNT


def test_without_a_file_a_window_of_other_threads_ends_too(monkeypatch):
    """The block's thread starts no op while it waits. The two parts that the timer makes add up to one account."""
    monkeypatch.setattr(session, "FLUSH_S", 0.02)
    before = {each for each in threading.enumerate() if isinstance(each, OwnThread)}
    with memwatch.profile() as prof:
        in_thread(lambda: [(torch.ones(COUNT), time.sleep(0.02)) for _ in range(10)])
    windows = prof.capture.tables["windows"]
    assert len(windows["window"]) > 2
    assert (windows["start_ns"][1:] == windows["end_ns"][:-1]).all()
    assert prof.peak_increase_bytes == 10 * 4 * COUNT

    def left():
        return {each for each in threading.enumerate() if isinstance(each, OwnThread)} - before

    assert until(lambda: not left())


def test_a_program_without_threads_gets_none():
    """A fork warns where a second thread runs."""
    before = threading.active_count()
    with memwatch.profile():
        torch.ones(COUNT)
        assert threading.active_count() == before


THREAD = 4
"""The column of the table `allocator`."""


def test_a_window_names_the_threads_that_it_heard():
    """A name is interned when an event has it, so a window takes no longer for all threads that ever ran."""
    block, events = block_and_events()
    assert events.open()
    try:
        for number in range(3):
            block.thread_names.append(f"worker {number}")
        thread = threading.Thread(
            target=lambda: (leave := events.enter_thread(1), torch.ones(COUNT), leave())
        )
        thread.start()
        thread.join()
    finally:
        (window,) = events.close()
    heard = [block.strings.texts[number] for number in set(window.events[:, THREAD].tolist()) if number >= 0]
    assert heard == ["worker 1"]
    assert not {"worker 0", "worker 2"} & set(block.strings.texts)


def test_no_two_threads_have_one_name():
    names = []
    threads = StartedThreads(names, None)
    threads.start()
    for _ in range(3):
        in_thread(lambda: None, name="same")
    threads.stop()
    assert names == ["same", "same #1", "same #2"]
    assert threads.unheard == 3


def test_events_that_nobody_takes_are_given_up():
    """A thread may keep the object that ends its log, and with it the native log."""
    _, events = block_and_events()
    assert events.open()
    leave = events.enter_thread
    torch.ones(COUNT)
    events.drop()
    rows, lost, _ = events._native.take()
    assert (len(rows), lost) == (0, 0)
    reference = weakref.ref(events)
    del events, leave
    gc.collect()
    assert reference() is None


def test_a_warm_pool_is_told_and_an_idle_thread_of_a_library_is_not():
    """Allocations of a pool's old workers do not count, so a note gives advice. Inside the block they count."""

    def told(prof):
        return [text for kind, text in prof.notes if "start them, or the pool" in text]

    with ThreadPoolExecutor(1) as pool:
        pool.submit(torch.ones, 1).result()
        with memwatch.profile() as prof:
            kept = pool.submit(torch.ones, COUNT)
            kept.result()
    assert len(told(prof)) == 1 or any("ran before the block" in text for _, text in prof.notes)
    idle = threading.Event()
    thread = threading.Thread(target=idle.wait)
    thread.start()
    others = StartedThreads([], None)
    others.start()
    others.stop()
    idle.set()
    thread.join()
    again = StartedThreads([], None)
    again.start()
    again.stop()
    assert (others.before, others.at_work_before) == (again.before + 1, again.at_work_before)


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="asks Linux for a thread's time on a processor"
)
def test_a_warm_pool_that_does_nothing_in_the_block_is_not_told():
    """Workers that were on no processor allocated nothing, whether the pool is the program's or torch.compile's."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(torch.ones, 1).result()
        wait_until_idle(pool)
        threads = StartedThreads([], None)
        threads.start()
        seen_idle = threads.at_work_before
        pool.submit(torch.ones, 1).result()
        seen_at_work = threads.at_work_before
        threads.stop()
    assert (seen_idle, seen_at_work, threads.at_work_before) == (0, 1, 1)


def wait_until_idle(pool):
    """Return when the time on a processor of each worker of a pool has stood still for a moment."""
    before = None
    while before != (now := [cpu_time_ns(each.native_id) for each in pool._threads]):
        before = now
        time.sleep(0.3)  # a loaded machine may leave a ready thread waiting
