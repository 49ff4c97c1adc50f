"""The monitor names the rows that grow, and disturbs nothing."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import os
import threading
import time

import growing_programs
import numpy as np
import pytest

import memwatch
from memwatch.errors import OptionError
from memwatch.monitor import examine, history, rows, watch
from memwatch.monitor.device_memory import CACHE, OUTSIDE, DeviceMemory
from memwatch.monitor.history import (
    MOST_SAMPLES,
    Growth,
    History,
    Sample,
    SampleFile,
    causes_first,
    growth_of,
)
from memwatch.monitor.rows import FREE_ROWS, MALLOC_FREE, OWN_ROWS, TENSORS

MIB = 1 << 20
SAMPLED = [
    "a dictionary of requests",
    "an autograd graph",
    "a native library",
    "a leak after much native memory was freed",
]
"""`reports/monitor.py` runs all programs."""


@pytest.mark.parametrize("name", SAMPLED)
def test_the_row_and_the_holder_of_a_growing_program_are_named(name, tmp_path):
    program = growing_programs.PROGRAMS[name]
    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
        rows, coverage, report = growing_programs.run(name, twin=False, folder=str(folder))
        # the monitor bounds its searches by time, so on a busy machine one of them may end early
        if rows[:1] == [program.row] and program.holder in report and coverage >= 0.95:
            break
    assert rows[:1] == [program.row], report
    assert program.holder in report, report
    assert coverage >= (0.85 if program.row == "native" else 0.95), report
    assert ("native=1 names the library" in report) == (program.row == "native")  # malloc is not sampled here
    assert "% is native memory from the start" in report
    assert "per 1,000 steps" in report


@pytest.mark.parametrize("name", SAMPLED[:2])
def test_no_row_of_a_twin_that_drops_as_much_is_accused(name, tmp_path):
    rows, coverage, report = growing_programs.run(name, twin=True, folder=str(tmp_path))
    assert rows == [], report
    assert coverage >= 0.95
    assert "no row grows" in report


def grows(values):
    times = [float(at) for at in range(len(values))]
    return growth_of("row", times, [int(value) for value in values], [0] * len(values), 100 * MIB)


def test_steady_growth_is_noticed_under_a_saw():
    """What is freed after each step hides nothing: the lowest values rise."""
    found = grows([at * MIB + (at % 3) * 50 * MIB for at in range(60)])
    assert found.nbytes > 20 * MIB
    assert found.bytes_per_hour == pytest.approx(3600 * MIB, rel=0.1)


@pytest.mark.parametrize(("free_mib", "first"), [(5, TENSORS), (40, MALLOC_FREE)])
def test_free_memory_comes_after_the_tensors_that_keep_it_apart(free_mib, first):
    found = [Growth(MALLOC_FREE, free_mib * MIB, 0, 60), Growth(TENSORS, 3 * MIB, 0, 60)]
    assert causes_first(found, FREE_ROWS)[0].row == first


def test_free_memory_of_a_device_is_explained_by_that_device_alone():
    """Tensors of the host don't keep the free blocks of a device apart."""
    cache = Growth("cuda:0 cache", 5 * MIB, 0, 60, device="cuda:0")
    on_device = Growth("cuda:0 tensors", 3 * MIB, 0, 60, device="cuda:0")
    on_host = Growth(TENSORS, 3 * MIB, 0, 60)
    free_rows = FREE_ROWS | {cache.row}
    assert causes_first([cache, on_host], free_rows) == [cache, on_host]
    assert causes_first([cache, on_host, on_device], free_rows) == [on_host, on_device, cache]


DENSE = [*range(20), *range(20, 400, 20)]
"""Times of samples: at first the credit pays for them."""


def test_growth_is_noticed_where_later_samples_are_rare():
    values = [at * MIB for at in DENSE]
    assert growth_of("row", DENSE, values, DENSE, 100 * MIB).bytes_per_hour == 3600 * MIB


@pytest.mark.parametrize("number", range(20, len(DENSE)))
def test_a_cache_that_filled_while_samples_were_dense_is_not_accused(number):
    values = [min(at, 18) * MIB for at in DENSE]
    times = DENSE[: number + 3]
    assert growth_of("row", times, values[: number + 3], times, 100 * MIB) is None


def test_samples_that_the_program_asks_for_have_no_clock_but_its_work():
    """The time between them is that of memwatch's searches too."""
    times = [float(at**3) for at in range(20)]
    samples = [dataclasses.replace(sample(at), time_s=time, is_asked=True) for at, time in enumerate(times)]
    assert history.clock_of(samples) == list(range(20))
    assert history.clock_of([sample(at) for at in range(20)]) == list(range(20))
    assert history.clock_of([dataclasses.replace(each, is_asked=False) for each in samples]) == times


def test_growth_that_begins_late_is_noticed():
    assert grows([MIB] * 60 + [at * MIB for at in range(60)])


@pytest.mark.parametrize(
    "values",
    [
        [MIB * min(at, 15) for at in range(60)],  # a cache that is full
        [MIB * (at % 7) for at in range(60)],
        [100 * MIB - MIB * at for at in range(60)],
        [MIB * (at // 40) * 50 for at in range(60)],  # one step
        [at * 1000 for at in range(60)],  # too little to matter
        [at * MIB for at in range(8)],  # too few samples
        [],
    ],
)
def test_what_does_not_grow_steadily_is_not_accused(values):
    assert grows(values) is None


FREED_BY_THREADS = [
    *(9.5, 11.4, 12.9, 14.4, 16.4, 18.0, 18.8, 19.5, 20.1, 20.5, 21.7, 23.7),
    *(24.0, 24.2, 24.2, 24.2, 24.5, 24.6, 24.6, 25.0, 25.4, 25.5, 25.5, 25.9),
]
"""MiB that malloc kept free after each turn of a program whose threads drop the tensors that they make."""
FRAGMENTED = [
    *(19.9, 19.7, 19.6, 20.9, 18.8, 22.6, 26.4, 30.2, 34.0, 37.8, 41.5, 53.4),
    *(54.4, 52.7, 56.4, 60.2, 63.9, 67.6, 71.3, 74.9, 78.6, 82.3, 85.9, 89.6),
]
"""The same of a program that fragments malloc."""


@pytest.mark.parametrize("row", [MALLOC_FREE, f"cuda:0 {CACHE}", TENSORS])
@pytest.mark.parametrize(("mib", "slows_down"), [(FREED_BY_THREADS, True), (FRAGMENTED, False)])
def test_free_memory_whose_growth_slows_down_is_not_accused(old_report, monitor, row, mib, slows_down):
    """The blocks that an allocator keeps approach the most that the program ever frees at once."""
    device = "cuda:0" if row.startswith("cuda:0") else ""
    samples = []
    for number, value in enumerate(mib):
        rows = {row: int(value * MIB)}
        of_process, of_devices = ({}, rows) if device else (rows, {})
        samples.append(dataclasses.replace(sample(number), rows=of_process, devices=of_devices))
    if device:
        memory = DeviceMemory(device, 0, 0, {CACHE: 0, OUTSIDE: 0})
        monitor._latest = dataclasses.replace(monitor._latest, devices=[memory])
    old_report(samples)
    is_free = row != TENSORS
    assert [each.row for each in monitor.growth] == ([] if slows_down and is_free else [row])


def sample(number):
    return Sample(float(number), number, 1, 1, 1, 1.0, {"tensors": number}, {})


@pytest.mark.parametrize("number", range(10, 20))
def test_growth_is_known_from_the_fewest_samples_on(number):
    assert (grows(np.arange(number) * MIB) is not None) == (number >= history.FEWEST_IN_ALL)


@pytest.fixture
def monitor(tmp_path):
    """Return a monitor whose thread samples once at most."""
    with memwatch.monitor(tmp_path / "memory.jsonl", interval_s=1000) as found:
        yield found


@pytest.fixture
def old_report(monitor, monkeypatch):
    """Return a function that reports on given samples: none is added."""
    monkeypatch.setattr(monitor, "_sample", lambda **_: None)

    def report(samples):
        monitor._history.samples = samples
        return monitor.report()

    return report


def test_a_report_with_too_few_samples_does_not_say_that_nothing_grows(monitor, old_report):
    sample = monitor._history.samples[0]
    text = old_report([sample] * (history.FEWEST_IN_ALL - 1))
    assert "not known whether a row grows: 14 samples of the 15 that are needed; they take about " in text
    more = dataclasses.replace(sample, rows={**sample.rows, TENSORS: 5 << 30})
    assert ", tensors +" in old_report([sample] * (history.FEWEST_IN_ALL - 2) + [more])
    assert "no row grows" in old_report([sample] * history.FEWEST_IN_ALL)


def test_the_start_of_a_program_is_not_shown_as_growth(monitor, old_report):
    sample = monitor._history.samples[0]
    more = dataclasses.replace(sample, rows={**sample.rows, TENSORS: 5 << 30})
    assert "tensors +" not in old_report([sample, more, more])
    assert "tensors +" not in old_report([sample, *[more] * 9])
    assert ", tensors +" in old_report([sample] * 9 + [more])


def test_a_report_has_a_new_sample_or_the_age_of_its_sample(monitor, monkeypatch):
    monitor._sampled_s -= 125
    assert "ago" not in monitor.report()
    assert len(monitor._history.samples) == 2
    monitor._sampled_s -= 125
    monkeypatch.setattr(monitor, "_sample", lambda **_: None)  # another thread takes one
    assert monitor.report().startswith("as of 125 s ago: process")


def test_a_stretched_interval_is_in_the_report(monitor, monkeypatch):
    monkeypatch.setattr(monitor, "_sample", lambda **_: None)
    assert "instead of" not in monitor.report()
    monitor._interval_s, monitor._cost_of_sample_s = 0.5, 0.1
    assert "one sample per 2.0 s instead of 0.5 s" in monitor.report()  # on credit
    monitor._samples_budget.spend(100.0)
    assert "one sample per 20.0 s instead of 0.5 s" in monitor.report()


def test_memory_that_was_not_searched_is_marked(monitor, monkeypatch):
    """It may be Python objects, such as numpy arrays, until a search finds them."""
    found = monitor._latest
    at_search = monitor._unexplained_at_search
    more = [
        dataclasses.replace(row, nbytes=row.nbytes + 60 * MIB)
        for row in found.rows
        if row.row == rows.NATIVE_AT_START
    ] + [rows.Row(rows.NATIVE, 8 * MIB, 8 * MIB, "malloc_info")]
    monkeypatch.setattr(watch, "rows_of", lambda **_: dataclasses.replace(found, rows=more))
    monitor._sample(allows=lambda _: False)
    assert "is newer than the last search, and may be Python objects" in monitor.report()
    monitor._sample(allows=lambda _: True)
    assert monitor._unexplained_at_search > at_search
    assert "is newer than the last search" not in monitor.report()


def test_a_search_does_not_delay_the_samples(monitor):
    monitor._searches_budget.spend(1000.0)
    assert not monitor._is_affordable(0.1)
    assert monitor._samples_budget.wait_s(0.1) == 0.0


def test_rss_that_doubles_renews_the_credit_once(monitor):
    monitor._samples_budget.spend(2.0)
    monitor._notice_fast_growth()
    assert monitor._samples_budget.left_s < 1.0
    monitor._rss_at_renewal //= 3
    for _ in range(2):
        monitor._notice_fast_growth()
        assert 1.0 < monitor._samples_budget.left_s < 3.0


VERDICT = """
import gc, sys, time, numpy as np, torch, memwatch
from memwatch.monitor import watch
gc.unfreeze()  # a search of objects that gc does not list takes longer
watch.SAMPLES_CREDIT_S, watch.MOST_RATIO = 100.0, 10.0  # the samples follow each other on a busy machine too
monitor = memwatch.monitor(interval_s=0.1, oom=False)
kept, end_s = [], time.monotonic() + 40
most = 10**9 if sys.argv[1] == "grows" else 4
while time.monotonic() < end_s and len(monitor._history.samples) < 17:
    kept.append(np.ones(1 << 18))
    del kept[:-most]
    time.sleep(0.02)
    if len(monitor._history.samples) == 15 and not monitor.growth:
        break
while monitor._lock.locked():  # it examines the row, in this thread
    time.sleep(0.01)
print(len(monitor._history.samples), [growth.row for growth in monitor.growth], monitor.report())
"""


@pytest.mark.parametrize("twin", [False, True])
def test_fifteen_samples_and_a_search_are_enough_for_a_verdict(twin, fresh_python):
    """Numpy arrays are in the row "native" until a search. The row that is named is that of the objects."""
    done = fresh_python(VERDICT, "drops" if twin else "grows")
    assert done.returncode == 0, done.stderr
    number, rest = done.stdout.split(" ", 1)
    assert int(number) >= 15
    assert rest.startswith("[] " if twin else "['Python objects'] "), rest
    assert ("held by global `kept`" in rest) == (not twin), rest


def test_the_history_stays_bounded_and_covers_the_whole_run():
    kept = History()
    for number in range(100_000):
        kept.add(sample(number))
        assert len(kept.samples) <= MOST_SAMPLES
    times = [each.time_s for each in kept.samples]
    assert times[0] == 0.0
    assert times[-1] > 99_000
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert max(gaps) <= 100_000 / (MOST_SAMPLES / 2)


def test_the_file_grows_by_less_than_a_megabyte_an_hour(tmp_path, monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(history.time, "monotonic", lambda: now_s[0])
    file = SampleFile(tmp_path / "memory.jsonl", pytest.fail)
    for number in range(36_000):
        now_s[0] += 0.1
        file.write({**vars(sample(number)), "rows": {f"row {each}": number for each in range(12)}})
    lines = (tmp_path / "memory.jsonl").read_text().splitlines()
    assert sum(map(len, lines)) < 1_000_000
    assert json.loads(lines[-1])["ticks"] > 35_000


def test_a_full_disk_is_a_note_and_leaves_no_half_line(tmp_path, monkeypatch):
    notes = []
    file = SampleFile(tmp_path / "memory.jsonl", notes.append)
    file.write({"number": 1})

    class Full:
        def __init__(self, *args, **kwargs):
            self.file = open(*args, **kwargs)  # noqa: SIM115

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def tell(self):
            return self.file.tell()

        def write(self, line):
            self.file.write(line[:4])
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(history, "open", Full, raising=False)
    file.write({"number": 2})
    assert (tmp_path / "memory.jsonl").read_text() == '{"number":1}\n'
    assert "No space left" in notes[0]


@pytest.mark.words
def test_free_memory_that_follows_from_a_row_has_that_row_as_its_cause(monitor, monkeypatch):
    found = [Growth(TENSORS, 5 * MIB, 0, 60), Growth(MALLOC_FREE, 9 * MIB, 0, 60)]
    monkeypatch.setattr(watch.Monitor, "growth", found)
    assert f"it follows from {TENSORS}" in monitor.report()
    monkeypatch.setattr(watch.Monitor, "growth", found[::-1])
    assert "it follows from" not in monitor.report()


@pytest.mark.parametrize("row", [rows.ARROW, rows.OTHER])
def test_memory_of_other_allocators_has_a_cause(row):
    assert examine.paths({}, {}, row)


def test_metrics_are_a_flat_dictionary_of_numbers(monitor):
    values = monitor.metrics()
    assert all(type(value) is float for value in values.values())
    assert values["memwatch_tensors_bytes"] >= 0
    assert values["memwatch_native_at_start_bytes"] > 0
    rows = [values[f"memwatch_{watch._identifier(row)}_bytes"] for row in OWN_ROWS]
    assert sum(rows) == values["memwatch_rss_bytes"]


def test_an_error_of_memwatch_is_a_note(monitor, monkeypatch):
    def fail(**_):
        raise RuntimeError("smaps is odd")

    monkeypatch.setattr(watch, "rows_of", fail)
    monitor.sample()
    assert monitor.notes == ["a sample was left out: RuntimeError: smaps is odd"]
    assert "smaps is odd" in monitor.report()


def test_stop_ends_the_thread_and_the_report_stays(monitor, tmp_path):
    thread = monitor._thread
    monitor.stop()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert not monitor.is_running
    monitor.stop()
    monitor.sample()
    lines = (tmp_path / "memory.jsonl").read_text().splitlines()
    assert len(lines) == 2  # at its start and at its stop
    assert json.loads(lines[-1])["rss_bytes"] > 0
    assert f"process {os.getpid()}" in monitor.report()


FORK = """
import os, threading, torch, memwatch
watch = memwatch.monitor("memory.jsonl", interval_s=0.05)
if os.fork():
    _, status = os.wait()
    print(status, watch.is_running)
else:
    watch.stop()
    watch.sample()
    assert not watch.is_running
    assert watch.metrics() and "process" in watch.report()
    inner = memwatch.monitor(interval_s=1000)
    inner.sample()
    inner.stop()
    assert not inner.notes, inner.notes
    os._exit(7)
"""


def test_a_fork_has_a_stopped_monitor_and_may_start_its_own(fresh_python):
    done = fresh_python(FORK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(7 << 8), "True"]


TRAINING = """
import asyncio, hashlib, random, sys, threading, torch, memwatch
from memwatch.monitor import watch
torch.manual_seed(0)
random.seed(0)
is_watched = sys.argv[1] == "watched"
if is_watched:
    watch.SAMPLES_CREDIT_S, watch.MOST_RATIO = 1000.0, 100.0  # samples without a pause
    monitor = memwatch.monitor(interval_s=0.05)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters())
for step in range(20):
    model(torch.randn(8, 16)).sum().backward()
    optimizer.step()
    if is_watched and step % 10 == 0:
        monitor.sample()
results = {}
def work(number):
    generator = torch.Generator().manual_seed(number)
    weight = torch.randn(64, 64, generator=generator).requires_grad_()
    for _ in range(50):
        (weight @ torch.randn(64, 64, generator=generator)).exp().mean().backward()
    results[number] = weight.grad
async def serve(number):
    held = torch.full((64,), float(number))
    for _ in range(50):
        held = held.sin()
        await asyncio.sleep(0)
    results[number] = held
async def serve_all():
    await asyncio.gather(*map(serve, range(10, 20)))
threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
asyncio.run(serve_all())
if is_watched:
    monitor.sample()
    assert not monitor.notes, monitor.notes
for thread in threads:
    thread.join()
tensors = [*model.parameters(), *(results[number] for number in sorted(results)), torch.rand(4)]
print(random.random(), [hashlib.sha256(each.detach().numpy().tobytes()).hexdigest() for each in tensors])
print(sorted(name for name in sys.modules if name in ("rich", "pandas", "IPython")))
"""


def test_a_program_with_threads_and_tasks_computes_the_same_with_a_monitor(fresh_python):
    """The program doesn't stop the monitor, which ends with it."""
    plain, watched = (fresh_python(TRAINING, word) for word in ("plain", "watched"))
    assert plain.returncode == watched.returncode == 0, watched.stderr
    assert plain.stdout == watched.stdout
    assert watched.stderr == plain.stderr == ""


INTERRUPTED = """
import os, signal, threading, memwatch
from memwatch.monitor import watch
watch.SAMPLES_CREDIT_S, watch.MOST_RATIO = 1000.0, 100.0  # samples without a pause
monitor = memwatch.monitor(interval_s=0.05)
class Stop(Exception):
    pass
def handle(number, frame):
    raise Stop
signal.signal(signal.SIGUSR1, handle)
timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGUSR1))
timer.start()
try:
    while True:
        pass
except Stop:
    print("the program has its exception")
monitor.stop()
"""


def test_an_exception_of_a_signal_handler_reaches_the_program(fresh_python):
    done = fresh_python(INTERRUPTED)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the program has its exception\n"


def test_the_searches_run_in_the_main_thread(monitor):
    """And a main thread that waits is not waited for for ever."""
    seen = []
    asked = threading.Thread(
        target=lambda: seen.append(monitor._main_thread.call(threading.current_thread, 60.0))
    )
    asked.start()
    while not seen:
        time.sleep(0.001)
    assert seen == [threading.main_thread()]

    def ask_late():
        time.sleep(0.5)  # the main thread is in `join` by then
        seen.append(monitor._main_thread.call(lambda: "late", 0.01))

    late = threading.Thread(target=ask_late)
    late.start()
    late.join()
    assert seen[1] is None


@pytest.mark.parametrize("interval_s", [0, -1, "10", float("nan"), True, None])
def test_a_wrong_interval_is_an_error(interval_s):
    with pytest.raises(OptionError, match="interval_s"):
        memwatch.monitor(interval_s=interval_s)


@pytest.mark.parametrize(
    ("given", "advice"), [(5, "interval_s=5"), (0.5, "interval_s=0.5"), (b"memory.jsonl", "memory.jsonl")]
)
def test_a_path_that_is_none_is_an_error(given, advice):
    """A number is the interval, whose name is missing."""
    with pytest.raises(OptionError, match=advice):
        memwatch.monitor(given)


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(OptionError, match="choose another file"):
        memwatch.monitor(tmp_path / "missing" / "memory.jsonl")


NEW_OBJECTS = """
import array, collections, io, mmap, sys, threading, numpy as np, torch
from memwatch.monitor.examine import python_objects
from memwatch.monitor.objects import python_memory
from memwatch.reserve import Reserve

class Node:
    def __init__(self, depth):
        self.children = [Node(depth - 1) for _ in range(2 * (depth > 0))]

class Connection:
    def __init__(self):
        self.buffer = bytearray(1 << 20)

connection, pages, text, samples = Connection(), io.BytesIO(), io.StringIO(), array.array("d", [1.0])
text.write("x" * 100_000)
pages.write(bytes(1 << 20))
small_ones = [bytes([97, number % 256, number // 256]) for number in range(2000)]
at_start = python_memory()
exec(sys.argv[1])
print(python_objects(at_start))
"""
HOLDERS = {
    "few large arrays": ("`frames`", "frames = {'few': [np.ones(1 << 17) for _ in range(8)]}"),
    "views of arrays": (
        "held by global `views` of module __main__\n",
        "views = {number: np.ones((1 << 10, 100 + number)).T for number in range(8)}",
    ),
    "many small objects": (
        "`requests`",
        "requests = [{'number': each, 'text': f'{each} ' + 'x' * 100} for each in range(20_000)]",
    ),
    "many lists": (
        "`lists`",
        "lists = [list(range(1000 * each, 1000 * each + 2000)) for each in range(1, 50)]",
    ),
    "texts of a middle size": ("`pieces`", "pieces = ['x' * 20_000 + str(each) for each in range(60)]"),
    "a list of small bytes": ("`small`", "small = [bytes(3000) for _ in range(500)]"),
    "bytes that grow in their place": (
        "global `connection` of module __main__, attribute .buffer of Connection",
        "connection.buffer += bytes(8 << 20)",
    ),
    "a file of bytes that grows": ("`pages`", "pages.write(bytes(8 << 20))"),
    "a file of text that grows": ("`text`", "text.seek(0); text.write('x' * (8 << 20))"),
    "an array that grows": ("`samples`", "samples.extend(range(1 << 20))"),
    "buffers of several threads": (
        "8.00 MiB of this growth in 8 objects held by local `buffer` of work in thread 'Thread-* (work)'",
        """
done, started = threading.Event(), threading.Semaphore(0)
def work():
    buffer = bytearray(1 << 20)
    started.release()
    done.wait()
for _ in range(8):
    threading.Thread(target=work, daemon=True).start()
    started.acquire()
""",
    ),
    # the reserve for the report on a lack of memory is 128 MiB, which nobody touches
    "large buffers beside the reserve": (
        "8.00 MiB of this growth in 8 objects held by global `images`",
        "reserve = Reserve(1 << 27); reserve.take(); images = collections.deque(bytearray(1 << 20) for _ in range(8))",
    ),
    "memory of mmap": (
        "8.00 MiB of this growth in 1 object held by global `space`",
        "space = mmap.mmap(-1, 1 << 27, flags=34); space[: 8 << 20] = bytes(8 << 20)",
    ),
    "more large objects than are searched": (
        "64.00 MiB of this growth in 64 of the 64 largest of 100 objects, held by global `images`",
        "images = [bytearray(1 << 20) for _ in range(100)]",
    ),
    "an array that grows in its place": (
        "`array.array` +8.50 MiB (the objects grew in their place)",  # Python takes a sixteenth more
        "samples.frombytes(bytes(8 << 20))",
    ),
    "a few large trees": (
        " that were looked at are held by global `trees` of module __main__",
        "trees = [Node(10) for _ in range(8)]",
    ),
    "variables of tasks that wait": (
        "in the `list` held by global `tasks`",
        """
import asyncio
tasks, loop = [], asyncio.new_event_loop()
async def serve(body):
    await asyncio.sleep(1e6)
async def start():
    tasks.extend(asyncio.ensure_future(serve(bytes(8000))) for _ in range(500))
    await asyncio.sleep(0)
loop.run_until_complete(start())
""",
    ),
    # only the stack of the loop refers to the generator
    "a variable of a generator in a loop": (
        "held by local `cache` of suspended generator produce",
        """
def produce():
    cache = [bytes(8000) for _ in range(500)]
    yield
for _ in produce():
    print(python_objects(at_start))
""",
    ),
    "fewer and larger bytes": (
        " objects fewer)",
        "del small_ones; large = [bytes(bytearray(1 << 20)) for _ in range(8)]",
    ),
}


@pytest.mark.parametrize("what", HOLDERS)
def test_the_holder_of_python_objects_that_grew_is_named(what, fresh_python):
    """Few large objects lie in a container that has too few entries to be found by its length."""
    holder, code = HOLDERS[what]
    done = fresh_python(NEW_OBJECTS, code)
    assert holder in done.stdout, done.stdout + done.stderr


UNRELATED = """
import torch
from memwatch.monitor.examine import python_objects
from memwatch.monitor.objects import python_memory

class Node:
    def __init__(self, before):
        self.before, self.number = before, 12345.0 * id(before)

numbers = {number: number for number in range(1000)}
at_start = python_memory()
node = None
for number in range(20_000):
    node = Node(node)
numbers.update({number: number for number in range(1000, 1100)})
print("numbers" in python_objects(at_start))
"""


def test_a_container_with_a_small_part_of_the_growth_is_not_named(fresh_python):
    """The growth is a linked list. No container has it."""
    done = fresh_python(UNRELATED)
    assert done.stdout == "False\n", done.stderr


UNTOUCHED = """
reserve = mmap.mmap(-1, 1 << 27, flags=34)
images = [bytearray(1 << 20) for _ in range(8)]
"""
MAPPED_FILE = """
open("data", "wb").write(bytes(16 << 20))
file = open("data", "rb")
reserve = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
sum(reserve[::4096])
images = [bytearray(1 << 20) for _ in range(8)]
"""


@pytest.mark.parametrize("code", [UNTOUCHED, MAPPED_FILE], ids=["untouched", "file"])
def test_a_mapping_without_new_memory_of_its_own_is_not_named(code, fresh_python):
    done = fresh_python(NEW_OBJECTS, code)
    assert "global `images`" in done.stdout, done.stdout + done.stderr
    assert "reserve" not in done.stdout


LINKED = """
import gc, torch
from memwatch.monitor.examine import python_objects
from memwatch.monitor.objects import python_memory

class Node:
    __slots__ = ("value", "before")

old = [{"list": []} for _ in range(15_000)]  # gc lists these, and not the new dictionaries of numbers
gc.collect()
at_start = python_memory()
node = None
for number in range(40_000):
    before, node = node, Node()
    node.value, node.before = VALUE, before
print(python_objects(at_start))
"""


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("str", "str(number) * 60"),
        ("int", "number << 900"),
        ("bytes", "bytes(400 + number % 2)"),
        ("dict", "{'first': number, 'second': 2.0}"),
        ("__main__.Node", "None"),
    ],
)
def test_new_objects_that_gc_does_not_list_accuse_nobody(kind, value, fresh_python):
    """The nodes themselves are listed. Their holder is named if they are a tenth of the growth."""
    done = fresh_python(LINKED.replace("VALUE", value))
    assert f" `{kind}` (" in done.stdout, done.stderr
    assert "global `old`" not in done.stdout
    assert ("`__main__.Node` that were looked at are held by" in done.stdout) == (kind != "bytes"), (
        done.stdout
    )


OLD_TREES = """
import torch
from memwatch.monitor.examine import python_objects
from memwatch.monitor.objects import python_memory

class Node:
    def __init__(self, depth):
        self.children = [Node(depth - 1) for _ in range(2 * (depth > 0))]

old = [Node(12) for _ in range(4)]
at_start = python_memory()
new = [Node(12)]
print(python_objects(at_start))
"""


def test_the_holder_of_old_objects_is_not_accused(fresh_python):
    """Most nodes are old, so most of a sample are."""
    done = fresh_python(OLD_TREES)
    assert "`__main__.Node`" in done.stdout, done.stderr
    assert "global `old`" not in done.stdout
