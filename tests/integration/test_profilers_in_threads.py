"""Profilers in other threads: each works, the recorder's log gives way, and a note reports the missing events."""

from __future__ import annotations

import threading

import pytest
import torch
from worker_threads import COUNT, NATIVE, NBYTES, Worker

import memwatch
from memwatch.record import allocator


@pytest.mark.parametrize("intercept", NATIVE, indirect=True)
def test_a_profiler_in_another_thread_works(intercept):
    """A thread has one profiler at most, so the log makes way for the program's; the block's own thread goes on."""
    seen = []

    def work():
        with torch.autograd.profiler.profile() as theirs:
            torch.ones(COUNT)
        seen.extend(event.key for event in theirs.key_averages())

    with memwatch.profile(intercept=intercept) as prof:
        thread = threading.Thread(target=work, name="profiled")
        thread.start()
        thread.join()
        torch.ones(3 * COUNT)
    assert "aten::ones" in seen
    assert prof.peak_increase_bytes == 3 * NBYTES
    assert prof.meta["allocator"]
    told = [text for kind, text in prof.notes if kind == "allocator"]
    assert len(told) == 1
    assert "'profiled'" in told[0]
    with torch.autograd.profiler.profile():
        torch.ones(1)


@pytest.mark.parametrize("intercept", NATIVE, indirect=True)
def test_a_thread_that_outlives_the_block_is_left(intercept):
    """The log leaves a running thread at its next allocation, and then a profiler can start there."""
    seen = []

    def profiled():
        torch.ones(1)
        with torch.autograd.profiler.profile() as theirs:
            torch.ones(1)
        seen.extend(event.key for event in theirs.key_averages())

    with memwatch.profile(intercept=intercept) as prof:
        worker = Worker()
        worker.do(lambda: torch.ones(COUNT))
    worker.do(profiled)
    worker.end()
    assert "aten::ones" in seen
    assert prof.peak_increase_bytes == NBYTES


def _profile_with_torch():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        torch.ones(10)


@pytest.mark.parametrize("intercept", NATIVE, indirect=True)
def test_a_profiler_in_a_thread_without_a_log_ends_nothing(intercept):
    """A thread from before the block cannot lose events, so a note is not needed."""
    worker = Worker()
    with memwatch.profile(intercept=intercept) as prof:
        worker.do(_profile_with_torch)
        torch.ones(3 * COUNT)
    worker.end()
    assert prof.peak_increase_bytes == 3 * NBYTES
    assert not [text for kind, text in prof.notes if kind == "allocator"]


def test_kineto_steps_aside_for_a_profiler_in_another_thread(fresh_python):
    """The process has one session of kineto: the program's takes it, and may start in the block's thread later."""
    program = """
        import threading, torch, memwatch

        over = threading.Event()
        seen = []

        def work(wait=lambda: None):
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
                torch.ones(10)
                wait()
            seen.append(any(event.key == "aten::ones" for event in theirs.key_averages()))

        with memwatch.profile() as prof:
            torch.ones(1000)
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            torch.ones(10**5)
        print(prof.meta["recorder"], prof.meta["allocator"], prof.peak_increase_bytes)
        work()
        with memwatch.profile() as prof:
            torch.ones(10**5)
        print(prof.meta["allocator"], prof.peak_increase_bytes)
        with memwatch.profile() as prof:  # theirs runs on
            thread, begun = threading.Thread(target=work, args=(lambda: begun.set() or over.wait(),)), threading.Event()
            thread.start()
            begun.wait()
            torch.ones(10**5)
        print(prof.meta["allocator"], prof.peak_increase_bytes)
        over.set()
        thread.join()
        with memwatch.profile() as prof:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            work()
        print(seen)
    """
    done = fresh_python(program, whole_end=True, MEMWATCH_NATIVE="0")
    told = "python False 400000\nTrue 400000\nFalse 400000\n[True, True, True, True, True]\n"
    assert (done.returncode, done.stdout) == (0, told), done.stderr


@pytest.mark.parametrize("intercept", NATIVE, indirect=True)
def test_a_thread_of_one_block_may_open_the_next(intercept):
    """The log of a block that is over makes way for the next, where nothing was allocated between."""
    worker = None
    with memwatch.profile(intercept=intercept):
        worker = Worker()
    blocks = []

    def profiled():
        with memwatch.profile(intercept=intercept) as prof:
            torch.ones(COUNT)
        blocks.append(prof)

    worker.do(profiled)
    worker.end()
    assert [prof.peak_increase_bytes for prof in blocks] == [NBYTES]
    assert blocks[0].meta["allocator"]


@pytest.mark.parametrize("intercept", NATIVE, indirect=True)
def test_a_block_that_cannot_hear_the_allocator_says_so(intercept, monkeypatch):
    """If anything has the place of a torch profiler, the block counts its storages, and a note reports it."""
    # as for a profiler that calls itself disabled
    monkeypatch.setattr(allocator, "is_running", lambda: False)
    with torch.autograd.profiler.profile(), memwatch.profile(intercept=intercept) as prof:
        torch.ones(COUNT)
    assert prof.peak_increase_bytes == NBYTES
    assert not prof.meta["allocator"]
    assert [text for kind, text in prof.notes if kind == "allocator"]
