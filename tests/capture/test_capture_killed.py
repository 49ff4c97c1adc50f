"""A run that is killed, or still running, has a file that holds everything up to the last flush."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import torch

import memwatch
from memwatch.capture import load

RUNS = 3
FLUSH_OPS = 10_000  # the promise: no more rows than these are lost
# One process imports torch and forks a child per run; each says how many ops it has done, and goes on forever.
PROGRAM = """
import os, sys, torch, memwatch
torch.set_num_threads(1)
children = []
for path in sys.argv[1:]:
    if (child := os.fork()) == 0:
        model = torch.nn.Linear(4, 4)
        with memwatch.profile(path):
            done = 0
            while True:
                for _ in range(50):
                    model(torch.ones(2, 4)).sum().backward()
                    done += 3  # at least
                os.write(1, f"{path} {done}\\n".encode())
    children.append(child)
print(*children, flush=True)
for child in children:
    os.waitpid(child, 0)
"""


def test_a_killed_run_loses_no_more_than_its_last_rows(tmp_path):
    """`kill -9` at random moments: the file loads, has no gap, and lacks at most the rows of one flush."""
    rng = random.Random(time.time_ns())  # random moments are the point
    paths = [str(tmp_path / f"{number}.memwatch") for number in range(RUNS)]
    said = dict.fromkeys(paths, 0)
    words = [sys.executable, "-c", PROGRAM, *paths]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as process:
        children: list[int] = []
        at = {path: rng.randint(1, FLUSH_OPS * 9 // 8) for path in paths}
        for line in process.stdout:
            first, *rest = line.split()
            if first.isdigit():
                children = [int(word) for word in (first, *rest)]
            else:
                said[first.decode()] = int(rest[0])
            for path, child in list(zip(paths, children, strict=False)):
                if said[path] >= at[path]:
                    os.kill(child, signal.SIGKILL)
                    at[path] = 1 << 60
    for path in paths:
        capture = load(path)
        ops = capture.tables["ops"]["op"]
        np.testing.assert_array_equal(ops, np.arange(len(ops)))
        assert len(ops) >= said[path] - FLUSH_OPS
        assert capture.meta["complete"] is False
        reading = memwatch.load(path)
        assert reading.notes[0][0] == "unfinished"
        assert "Peak" in reading.summary()


def test_a_run_killed_before_its_first_flush_reads_as_an_unfinished_one(tmp_path):
    """The file has no row.

    Every reading works, and reports that the block has not ended and left no data.
    """
    path = tmp_path / "early.memwatch"
    if (child := os.fork()) == 0:
        with memwatch.profile(path):
            torch.ones(3)
            os._exit(0)
    os.waitpid(child, 0)
    reading = memwatch.load(path)
    assert len(reading.ops) == len(reading.storages) == len(reading.at_peak) == 0
    ((kind, text),) = reading.notes
    assert kind == "unfinished"
    assert "That is nothing yet." in text
    assert "has not ended" in reading.summary()
    assert "memwatch does not know what tensors it made" in reading.summary(width=200)
    assert "made no tensor" not in reading.summary(width=200)
    reading.report(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 0


def test_a_file_can_be_read_while_it_is_written(tmp_path):
    """Every reading of a growing file has whole rows that agree with each other, and never fewer than before."""
    torch.set_num_threads(1)
    path = tmp_path / "growing.memwatch"
    model = torch.nn.Linear(4, 4)
    seen = [0]
    with memwatch.profile(path):
        while seen[-1] < 2 * FLUSH_OPS:
            for _ in range(200):
                model(torch.ones(2, 4)).sum().backward()
            capture = load(path)
            tables = capture.tables
            count = len(tables["ops"]["op"])
            assert count >= seen[-1]
            np.testing.assert_array_equal(tables["ops"]["op"], np.arange(count))
            assert tables["ops"]["name"].max(initial=-1) < len(capture.strings)
            assert tables["uses"]["op"].max(initial=-1) <= count
            seen.append(count)
    assert len(set(seen)) > 2
    assert memwatch.load(path).meta["complete"] is True
    assert len(memwatch.load(path).ops) >= seen[-1]
