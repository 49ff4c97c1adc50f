"""A live view shows the figures of the reading of the same file."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import time

import psutil
import pytest
import torch

import memwatch
import memwatch.capture.file
from memwatch.live import watch
from memwatch.live.watch import State, Watch, figures_of, state_of


def test_the_figures_are_those_of_the_reading(trained):
    """Live now, peak, categories, the largest storages and the steps agree with the tables, to the byte."""
    reading = memwatch.load(trained)
    figures, line = figures_of(reading), reading.timeline
    alive = reading.live_at(len(line) - 1)
    assert figures.live_bytes == line["live_bytes"].iloc[-1] == alive["nbytes"].sum()
    assert figures.peak_bytes == reading.peak_bytes == max(figures.curve_bytes)
    assert dict(figures.categories) == alive.groupby("category")["nbytes"].sum().to_dict()
    assert [each.nbytes for each in figures.largest] == sorted(alive["nbytes"], reverse=True)
    assert {each.name for each in figures.largest} == set(alive["name"])
    ended = [each for each in figures.iterations if each.has_ended]
    assert [each.peak_bytes for each in ended] == reading.steps["peak_bytes"].tolist()[: len(ended)]
    assert [each.number for each in ended] == [0, 1, 2]


def test_each_stretch_of_the_curve_has_its_highest_value(tmp_path):
    """A stretch without events shows the live bytes in it, and a short spike is kept."""
    path = tmp_path / "a.memwatch"
    with memwatch.profile(path):
        kept = torch.ones(1 << 16)
        time.sleep(0.1)
        del kept
        spike = torch.ones(1 << 18)
        del spike
        time.sleep(0.1)
        last = torch.ones(4)
    del last
    figures = figures_of(memwatch.load(path))
    before = figures.curve_bytes[0]
    assert figures.curve_bytes[40] - before in (
        0,
        1 << 18,
    )  # the baseline has no event before the first tensor
    assert max(figures.curve_bytes) == figures.peak_bytes
    assert figures.curve_bytes[-20] == min(figures.curve_bytes)


def test_iterations_are_known_without_marks(fresh_python, tmp_path):
    """Where the program marks no steps, iterations end with the optimizer's."""
    fresh_python(
        """
        import memwatch, torch
        model = torch.nn.Linear(64, 64)
        optimizer = torch.optim.SGD(model.parameters())
        with memwatch.profile("a.memwatch"):
            for rows in (8, 512, 8):
                model(torch.ones(rows, 64)).sum().backward()
                optimizer.step()
        """
    )
    iterations = [
        each for each in figures_of(memwatch.load(tmp_path / "a.memwatch")).iterations if each.has_ended
    ]
    assert [each.number for each in iterations] == [0, 1, 2]
    assert iterations[1].peak_bytes == max(each.peak_bytes for each in iterations)
    assert iterations[1].peak_bytes - iterations[0].peak_bytes >= (512 - 8) * 64 * 4


def test_a_file_that_grows_is_read_again(tmp_path):
    """A view has the tensors that were flushed since the one before; the last one has the end."""
    path = tmp_path / "a.memwatch"
    watch, kept = Watch(path, may_be_missing=True), []
    assert watch.look().state is State.WAITING
    with memwatch.profile(path):
        first = _until(watch, lambda figures: figures is not None, kept)
        assert first.state is State.RUNNING
        kept.append(torch.ones(1 << 20))
        grown = _until(watch, lambda figures: figures.live_bytes >= 4 << 20, kept)
        assert grown.figures.largest[0].nbytes == 4 << 20
        assert grown.age_s < 60
    ended = watch.look()
    assert ended.state is State.ENDED
    assert ended.figures == figures_of(memwatch.load(path))


def test_a_new_recording_of_the_same_name_is_read_from_its_start(tmp_path):
    """Where a program is run again into the same file, nothing of the recording before is left."""
    path = tmp_path / "a.memwatch"
    watch = Watch(path)
    for count in (1 << 16, 1 << 12):
        path.unlink(missing_ok=True)
        with memwatch.profile(path):
            kept = torch.ones(count)
        assert watch.look().figures == figures_of(memwatch.load(path))
        del kept


def _until(watch, is_so, kept):
    """Run small ops until the view of the flushed data has the wanted state."""
    for _ in range(600):
        kept.append(torch.ones(16))
        view = watch.look()
        if view.figures is not None and is_so(view.figures):
            return view
        time.sleep(0.05)
    raise AssertionError("nothing was flushed")


def test_a_killed_program_is_told(fresh_python, tmp_path):
    """The recording has no end and its process is gone. The figures come from the last flush."""
    fresh_python(
        """
        import memwatch, os, pathlib, signal, time, torch
        with memwatch.profile("a.memwatch"):
            kept = torch.ones(1 << 16)
            while memwatch.load("a.memwatch").capture.rows("births") == 0:
                torch.ones(16)
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    view = Watch(tmp_path / "a.memwatch").look()
    assert view.state is State.KILLED
    assert view.figures.largest[0].nbytes == 4 << 16


HERE = {"complete": False, "host": socket.gethostname(), "pid": os.getpid()}


@pytest.mark.parametrize(
    ("meta", "age_s", "state"),
    [
        ({}, 0, State.WAITING),
        ({**HERE, "complete": True}, 1000, State.ENDED),
        ({**HERE, "started_s": time.time()}, 1000, State.RUNNING),
        (
            {**HERE, "started_s": psutil.Process().create_time() - 60},
            0,
            State.KILLED,
        ),  # the number is another's
        ({**HERE, "host": "elsewhere"}, 1, State.RUNNING),
        ({**HERE, "host": "elsewhere"}, 1000, State.SILENT),
    ],
)
def test_the_state_goes_by_the_end_and_by_the_process(meta, age_s, state):
    """A recording runs while its process does; on another host nothing but the flushes can be seen."""
    assert state_of(meta, age_s) is state


@pytest.mark.parametrize("start_s", [0.1, 3.0])
def test_a_view_takes_no_more_than_its_share(start_s, monkeypatch):
    """Readings take at most 2 % of two processors.

    So does the whole view once the start is paid back, from half of that.
    """
    now = {"cpu": start_s, "time": 0.0}
    monkeypatch.setattr(watch.time, "process_time", lambda: now["cpu"])
    monkeypatch.setattr(watch.time, "monotonic", lambda: now["time"])
    waiting, cpu_s, spent_s, is_paid = watch.Pace(processors=2), 0.002, 0.0, False
    for _ in range(20):
        wait_s = waiting.wait_s(cpu_s)
        assert wait_s >= watch.LEAST_S
        cpu_s *= 1.5
        spent_s += cpu_s
        now = {"cpu": start_s + spent_s, "time": now["time"] + wait_s}
        assert spent_s <= 0.02 * now["time"]
        is_paid = start_s <= 0.01 * now["time"]
        assert not is_paid or start_s + spent_s <= 0.02 * now["time"]
    assert is_paid


def test_a_view_starts_without_pandas_and_torch(trained):
    """To import either takes longer than to read a small recording."""
    code = (
        "import sys; from pathlib import Path; import memwatch.live.app; from memwatch.live.watch import Watch; "
        "assert Watch(Path(sys.argv[1])).look().figures; print({'pandas', 'torch'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code, trained], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"


def test_a_writer_waits_for_no_reader_that_checks(trained, monkeypatch):
    """A file is free for its program as soon as its rows are read, before a reader looks at them."""
    check = memwatch.capture.file.checked

    def checked_while_written(*parts):
        sqlite3.connect(trained, timeout=0).execute("BEGIN EXCLUSIVE")
        return check(*parts)

    monkeypatch.setattr(memwatch.capture.file, "checked", checked_while_written)
    assert memwatch.load(trained).peak_bytes
