"""Other threads than the block's: what they free dies then, and what they allocate counts or is told."""

from __future__ import annotations

import gc
import os
import queue
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import memwatch
from memwatch.analysis.facts.blocks import Blocks
from memwatch.analysis.facts.deaths import LIVES, end_blocks, part_from_successors
from memwatch.record.allocator import channel
from memwatch.record.allocator.threads import name_of
from memwatch.record.patches import Patches
from memwatch.record.session import Session

WAYS = ("key", "mode", "key-python", "mode-python")
NATIVE = ("key", "mode")
COUNT = 100_000
NBYTES = 4 * COUNT
_ENOUGH_S = 30


class Worker:
    """A thread that does one job after the other, while the thread that gave the job waits."""

    def __init__(self):
        self._jobs, self._done = queue.Queue(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="worker", daemon=True)
        self._thread.start()

    def _work(self):
        while (job := self._jobs.get()) is not None:
            try:
                job()
            finally:
                del job
                self._done.set()

    def do(self, job):
        self._done.clear()
        self._jobs.put(job)
        del job
        assert self._done.wait(_ENOUGH_S)

    def end(self):
        self._jobs.put(None)
        self._thread.join(_ENOUGH_S)


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
    """One tensor lives at once: each job of the pool drops what it was given."""
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
    """Make five tensors in a thread that keeps them, and one that it hands here, while this thread has one more."""
    handed, go = queue.Queue(), threading.Event()

    def work():
        kept = [torch.ones(COUNT) for _ in range(5)]
        go.wait(_ENOUGH_S)
        handed.put(torch.ones(2 * COUNT))
        del kept
        handed.put(None)

    thread = threading.Thread(target=work, name="maker")
    thread.start()
    own = torch.ones(COUNT)
    go.set()
    theirs = handed.get(timeout=_ENOUGH_S)
    handed.get(timeout=_ENOUGH_S)
    thread.join()
    torch.dot(theirs[:COUNT], own)


@pytest.mark.parametrize("intercept", NATIVE, indirect=True)
def test_what_another_thread_allocates_counts_as_its_own(intercept):
    """The native recorder hears the threads that start in the block, and names them."""
    with memwatch.profile(intercept=intercept) as prof:
        _hand_over()
    assert prof.meta["recorder"] == "native"
    assert prof.peak_increase_bytes == 8 * NBYTES
    theirs = prof.at_peak[prof.at_peak["origin"] == "thread"]
    assert theirs["nbytes"].sum() == 7 * NBYTES
    assert theirs["name"].str.contains("maker").all()
    assert not theirs[["line", "op_name", "module"]].to_numpy().any()
    assert sorted(theirs["category"]) == ["input"] + ["unknown"] * 5
    assert [
        text for kind, text in prof.notes if kind == "threads" and text.startswith("1 other thread allocated")
    ]


@pytest.mark.parametrize(
    "options", [{"intercept": "mode-python"}, {"intercept": "mode", "allocator": False}], ids=str
)
def test_a_thread_that_cannot_be_heard_is_told(options, monkeypatch):
    """Without a log in the thread its bytes are in no figure, and a note says so."""
    way, _, recorder = options["intercept"].partition("-")
    monkeypatch.setenv("MEMWATCH_NATIVE", "0" if recorder else "1")
    with memwatch.profile(intercept=way, allocator=options.get("allocator", True)) as prof:
        _hand_over()
    told = [text for kind, text in prof.notes if kind == "threads" and "could not be heard" in text]
    assert len(told) == 1
    assert told[0].startswith("1 other thread started that could not be heard")


@pytest.mark.parametrize("intercept", NATIVE, indirect=True)
def test_what_a_thread_made_that_ran_before_is_told(intercept):
    """A thread that ran before the block has no log; what it hands over does not count, and a note says so."""
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
    """Ops of other threads are not recorded, so a tensor without a use here may have been made for one of them."""
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
            done.get(timeout=_ENOUGH_S)
        waiting.put(None)
        thread.join()
    assert prof.findings == []
    with memwatch.profile() as prof:
        batch = torch.ones(10 * COUNT)
        torch.ones(10 * COUNT).sum()
        del batch
    assert [finding.kind for finding in prof.findings] == ["void"]


def test_a_program_without_threads_has_no_note_of_them():
    """Nothing is said of threads where there is nothing to say."""
    with memwatch.profile() as prof:
        torch.ones(COUNT)
    assert not [text for kind, text in prof.notes if kind == "threads"]


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
    """A thread that ran before the block has no events to lose, so there is nothing to tell."""
    worker = Worker()
    with memwatch.profile(intercept=intercept) as prof:
        worker.do(_profile_with_torch)
        torch.ones(3 * COUNT)
    worker.end()
    assert prof.peak_increase_bytes == 3 * NBYTES
    assert not [text for kind, text in prof.notes if kind == "allocator"]


def test_kineto_steps_aside_for_a_profiler_in_another_thread():
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
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False,
        env={**os.environ, "MEMWATCH_NATIVE": "0"},
    )  # fmt: skip
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
    """Whatever stands in the place of a torch profiler, the block goes by its storages and a note tells."""
    monkeypatch.setattr(channel, "is_running", lambda: False)  # as for a profiler that calls itself disabled
    with torch.autograd.profiler.profile(), memwatch.profile(intercept=intercept) as prof:
        torch.ones(COUNT)
    assert prof.peak_increase_bytes == NBYTES
    assert not prof.meta["allocator"]
    assert [text for kind, text in prof.notes if kind == "allocator"]


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
    """The name of a thread is read without the program's code, for whoever starts it waits for it."""
    threads = [
        _Unready(target=torch.ones, args=(COUNT,), daemon=True),
        _Labelled(target=torch.ones, args=(1,)),
    ]
    with memwatch.profile(intercept=intercept):
        starter = threading.Thread(target=lambda: [each.start() for each in threads], daemon=True)
        starter.start()
        starter.join(_ENOUGH_S)
        started = not starter.is_alive()
    assert started
    for each in threads:
        each.join(_ENOUGH_S)
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
    """What writes the file now and then is no thread that the program ran before the block."""
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


class _Place:
    """Has functions that a program replaces too."""

    def own(self):
        return "original"

    @staticmethod
    def static():
        return "original"


class _Inherits(_Place):
    pass


class _Recorder:
    def called(self, original, *args):
        return "recorded " + original(*args)

    def entered(self, *args):
        return lambda: None


@pytest.mark.parametrize("place", [_Place, _Inherits])
@pytest.mark.parametrize("name", ["own", "static"])
def test_a_replacement_of_the_programs_stays(place, name, monkeypatch):
    """What the program put over ours in the block stays, and through it the original is called afterwards."""
    monkeypatch.setattr(place, name, vars(_Place)[name])
    recorder, patches = _Recorder(), Patches()
    patches.put(place, name, recorder.called)
    ours = getattr(place, name)
    theirs = staticmethod(lambda *args: "theirs " + ours(*args))
    monkeypatch.setattr(place, name, theirs)
    assert getattr(place, name)(place()) if name == "own" else getattr(place, name)()
    patches.take_off()
    assert vars(place)[name] is theirs
    arguments = (place(),) if name == "own" else ()
    assert getattr(place, name)(*arguments) == "theirs original"
    patches.put(place, name, recorder.called)
    assert getattr(place, name)(*arguments) == "recorded theirs original"
    patches.take_off()
    assert vars(place)[name] is theirs


def test_an_inherited_function_is_put_back_by_removing_ours():
    """A class that had no function of its own has none afterwards, and a running call ends with its original."""
    patches = Patches()
    recorder = _Recorder()
    patches.put_around(_Inherits, "own", recorder.entered)
    assert "own" in vars(_Inherits)
    assert _Inherits().own() == "original"
    patches.take_off()
    assert "own" not in vars(_Inherits)


@pytest.mark.parametrize("intercept", NATIVE, indirect=True)
def test_a_programs_own_bootstrap_of_threads_stays(intercept, monkeypatch):
    """A replacement that the program makes of a function of Python in the block is there after it."""
    begun = []
    with memwatch.profile(intercept=intercept):
        ours = threading.Thread._bootstrap_inner

        def theirs(thread):
            begun.append(thread)
            ours(thread)

        threading.Thread._bootstrap_inner = theirs
    try:
        assert threading.Thread._bootstrap_inner is theirs
        Worker().end()
        assert len(begun) == 1
    finally:
        threading.Thread._bootstrap_inner = ours.__wrapped__


def _column(*values):
    return np.array(values, dtype=np.int64)


def test_a_storage_on_memory_that_was_given_back_is_another():
    """What is first seen on a block after all that lay there died lies in memory that no log heard of."""
    block_of = _column(0, 0, 0, 1)
    seen_ns, died_ns = _column(10, 20, 40, 15), _column(30, 25, LIVES, LIVES)
    assert part_from_successors(block_of, seen_ns, died_ns).tolist() == [0, 0, -1, 1]
    alias_lives = _column(LIVES, 25, LIVES, LIVES)
    assert part_from_successors(block_of, seen_ns, alias_lives).tolist() == [0, 0, 0, 1]


def test_a_block_ends_with_what_was_heard_first():
    """A free that was heard is exact; else the storage's death counts, and the address in use again at the latest."""
    none = _column(-1, -1, -1, -1)
    blocks = Blocks(
        address=_column(1, 2, 3, 4), nbytes=_column(8, 8, 8, 8), device=_column(0, 0, 0, 0), thread=none,
        birth_ns=_column(0, 1, 2, 3), death_ns=_column(90_000, 90_000, 90_000, -1), birth_order=_column(0, 1, 2, 3),
        death_order=_column(7, 8, 9, -1), freed=np.array([True, False, False, False]),
    )  # fmt: skip
    resizes = {name: _column() for name in ("storage", "time_ns", "address")}
    died_ns = _column(90_010, 50_000, 95_000, 60_000)
    ended = end_blocks(blocks, _column(0, 1, 2, 3), resizes, died_ns)
    assert ended.death_ns.tolist() == [90_000, 50_000, 90_000, 60_000]
    assert ended.death_order.tolist() == [7, -1, 9, -1]
