"""Other threads than the block's: their frees end memory at once, and their allocations count or are reported."""

from __future__ import annotations

import gc
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from worker_threads import COUNT, ENOUGH_S, NATIVE, NBYTES, WAYS, Worker

import memwatch
from memwatch.record.allocator import name_of
from memwatch.record.native import library
from memwatch.record.session import Session


def clears_a_list(worker):
    """Five tensors live at once: the worker clears the list before the next round."""
    for _ in range(3):
        made = [torch.ones(COUNT) for _ in range(5)]
        worker.do(made.clear)


def consumes_a_queue(worker):
    """One tensor lives at once: the consumer drops each before the next is made."""
    waiting = queue.Queue()
    for _ in range(4):
        waiting.put(torch.ones(COUNT))
        worker.do(waiting.get)


def deletes_an_attribute(worker):
    """One tensor lives at once: the worker deletes the attribute that holds it."""
    for _ in range(4):
        worker.kept = torch.ones(COUNT)
        worker.do(lambda: delattr(worker, "kept"))


def submits_to_an_executor(worker):  # the executor has a worker of its own
    """One tensor lives at once, because each job of the pool drops its argument."""
    with ThreadPoolExecutor(1) as pool:
        for _ in range(4):
            given = [torch.ones(COUNT)]
            pool.submit(given.clear).result()


LIVE_AT_ONCE = {
    clears_a_list: 5,
    consumes_a_queue: 1,
    deletes_an_attribute: 1,
    submits_to_an_executor: 1,
}


@pytest.mark.parametrize("program", LIVE_AT_ONCE, ids=lambda program: program.__name__)
@pytest.mark.parametrize("intercept", WAYS, indirect=True)
def test_what_another_thread_frees_dies_then(program, intercept):
    """The peak is exact wherever the last reference goes: with and without the allocator, old threads and new ones."""
    for allocator in (True, False):
        for runs_before in (True, False):
            worker = Worker() if runs_before else None
            with memwatch.profile(intercept=intercept, allocator=allocator) as prof:
                worker = worker or Worker()
                program(worker)
            worker.end()
            assert prof.peak_increase_bytes == LIVE_AT_ONCE[program] * NBYTES, (allocator, runs_before)


def _hand_over():
    """Make six tensors in a thread. It keeps five of them and passes one to this thread, which makes another.

    The thread keeps its five until this thread has run an op while all tensors are alive.
    """
    handed, go, has_run = queue.Queue(), threading.Event(), threading.Event()

    def work():
        kept = [torch.ones(COUNT) for _ in range(5)]
        go.wait(ENOUGH_S)
        handed.put(torch.ones(2 * COUNT))
        has_run.wait(ENOUGH_S)
        del kept

    thread = threading.Thread(target=work, name="maker")
    thread.start()
    own = torch.ones(COUNT)
    go.set()
    theirs = handed.get(timeout=ENOUGH_S)
    own.add_(theirs[:COUNT])
    has_run.set()
    thread.join()


@pytest.mark.parametrize("intercept", NATIVE, indirect=True)
def test_what_another_thread_allocates_counts_as_its_own(intercept):
    """The native recorder gets events of threads that start in the block, and names the threads."""
    with memwatch.profile(intercept=intercept) as prof:
        _hand_over()
    assert prof.meta["recorder"] == "native"
    assert prof.peak_increase_bytes == 8 * NBYTES
    theirs = prof.at_peak[prof.at_peak["origin"] == "thread"]
    assert theirs["nbytes"].sum() == 7 * NBYTES
    assert theirs["name"].str.contains("maker").all()
    assert not theirs[["line", "op_name", "module"]].to_numpy().any()
    assert list(theirs["category"]) == ["input"] * 6  # a sample met them in that thread
    assert [
        text for kind, text in prof.notes if kind == "threads" and text.startswith("1 other thread allocated")
    ]


@pytest.mark.parametrize(
    "options", [{"intercept": "mode-python"}, {"intercept": "mode", "allocator": False}], ids=str
)
def test_a_thread_that_cannot_be_heard_is_told(options, monkeypatch):
    """If the thread has no log, its bytes are missing from all figures, and a note reports it."""
    way, _, recorder = options["intercept"].partition("-")
    monkeypatch.setenv("MEMWATCH_NATIVE", "0" if recorder else "1")
    with memwatch.profile(intercept=way, allocator=options.get("allocator", True)) as prof:
        _hand_over()
    told = [text for kind, text in prof.notes if kind == "threads" and "could not observe" in text]
    assert len(told) == 1
    assert told[0].startswith("1 other thread started that memwatch could not observe")


@pytest.mark.parametrize("intercept", NATIVE, indirect=True)
def test_what_a_thread_made_that_ran_before_is_told(intercept):
    """A thread that ran before the block has no log. Its memory does not count, and a note reports it."""
    worker, handed = Worker(), []
    with memwatch.profile(intercept=intercept) as prof:
        worker.do(lambda: handed.append(torch.ones(COUNT)))
        handed[0].clone()
    worker.end()
    assert prof.peak_increase_bytes == NBYTES
    assert any(kind == "threads" and "before the block" in text for kind, text in prof.notes)


@pytest.mark.parametrize("intercept", NATIVE, indirect=True)
def test_the_events_of_all_threads_are_in_the_order_of_their_times(intercept):
    """A row has the time at which it was put behind the others, however many threads allocate at once."""

    def work():
        for _ in range(5000):
            torch.empty(1)

    with memwatch.profile(intercept=intercept) as prof:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    time_ns = prof.capture.tables["allocator"]["time_ns"]
    assert len(time_ns) == 4 * 5000 * 2
    assert (np.diff(time_ns) >= 0).all()


def test_what_another_thread_may_use_is_not_called_unused():
    """Ops of other threads are not recorded. A tensor that this thread never uses may have been made for them."""
    waiting, done = queue.Queue(), queue.Queue()

    def consume():
        while (given := waiting.get()) is not None:
            done.put(float((given * 2).sum()))
            del given

    thread = threading.Thread(target=consume, name="consumer")
    with memwatch.profile() as prof:
        thread.start()
        for _ in range(3):
            batch = torch.ones(10 * COUNT)
            waiting.put(batch)
            done.get(timeout=ENOUGH_S)
        waiting.put(None)
        thread.join()
    assert prof.findings == []
    with memwatch.profile() as prof:
        batch = torch.ones(10 * COUNT)
        torch.ones(10 * COUNT).sum()
        del batch
    assert [finding.kind for finding in prof.findings] == ["void"]


@pytest.mark.parametrize(("uses_it", "kinds"), [(True, []), (False, ["drag"])])
def test_what_another_thread_may_still_use_is_not_said_to_drag(uses_it, kinds):
    """Here it was used last, but a thread has it too, and allocates since: its ops are not recorded."""
    waiting, done = queue.Queue(), queue.Queue()

    def consume():
        done.put(float((waiting.get() * 2).sum()))

    with memwatch.profile() as prof:
        batch = torch.ones(10 * COUNT)
        batch.sum()
        if uses_it:
            thread = threading.Thread(target=consume, name="consumer")
            thread.start()
            waiting.put(batch)
            done.get(timeout=ENOUGH_S)
            thread.join()
        for _ in range(2):
            torch.ones(10 * COUNT) * 2
        del batch
    assert [finding.kind for finding in prof.findings] == (kinds if library.is_wanted() else ["drag"])
    told = "memwatch does not see which tensors other threads use" in prof.summary(width=160, color=False)
    assert told == uses_it


def test_a_program_without_threads_has_no_note_of_them():
    with memwatch.profile() as prof:
        torch.ones(COUNT)
    assert not [text for kind, text in prof.notes if kind == "threads"]


class _Unready(threading.Thread):
    @property
    def name(self):
        """Raise unless the thread is already up: its own attributes are set later."""
        assert self.is_alive()
        raise AttributeError("no name yet")


class _Labelled(threading.Thread):
    name = "labelled"


@pytest.mark.parametrize("intercept", WAYS, indirect=True)
def test_a_thread_starts_whatever_its_name_is(intercept):
    """The name of a thread is read without the program's code, because the code that starts the thread waits for it."""
    threads = [
        _Unready(target=torch.ones, args=(COUNT,), daemon=True),
        _Labelled(target=torch.ones, args=(1,)),
    ]
    with memwatch.profile(intercept=intercept):
        starter = threading.Thread(target=lambda: [each.start() for each in threads], daemon=True)
        starter.start()
        starter.join(ENOUGH_S)
        started = not starter.is_alive()
    assert started
    for each in threads:
        each.join(ENOUGH_S)
    assert [name_of(each) == "labelled" for each in threads] == [False, True]


@pytest.mark.parametrize("intercept", WAYS, indirect=True)
def test_a_thread_that_outlives_the_block_keeps_no_recording(intercept):
    """While its body runs, nothing of the block's is held for the thread."""
    gc.collect()
    before = {id(each) for each in gc.get_objects() if type(each) is Session}
    with memwatch.profile(intercept=intercept) as prof:
        worker = Worker()
        worker.do(lambda: torch.ones(COUNT))
    assert prof.peak_increase_bytes >= 0
    del prof
    gc.collect()
    left = [each for each in gc.get_objects() if type(each) is Session and id(each) not in before]
    kept = bool(left)
    del left
    worker.end()
    assert not kept


def test_the_threads_of_the_recorder_are_not_the_programs(tmp_path):
    """The thread that writes the file is not a thread of the program."""
    others = threading.active_count() - 1  # of other tests and of libraries
    for each in ("first", "second"):  # the thread of the first may still be ending
        with memwatch.profile(tmp_path / f"{each}.mw") as prof:
            torch.ones(1)
        assert prof.meta["threads_before"] == others
    worker = Worker()
    with memwatch.profile(tmp_path / "third.mw") as prof:
        torch.ones(1)
    worker.end()
    assert prof.meta["threads_before"] == others + 1
