"""Another program removes, cuts off, replaces or locks the file while it is written: nothing recorded is lost."""

from __future__ import annotations

import os
import shutil
import sqlite3

import pytest
import torch

import memwatch
from memwatch.capture import CaptureError, file, recording


def work(ops):
    x = torch.ones(64, 64)
    for _ in range(ops):
        x = x + 1


def work_disturbed(prof, disturb, path):
    """Do some work, have it written, change the file, and go on."""
    work(300)
    prof.flush()
    disturb(path)
    work(300)


def lock(path):
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    _locks.append(other)


_locks = []


def cut(path, nbytes):
    os.truncate(path, nbytes)


def put_another_in_its_place(path):
    path.with_name("new").write_bytes(path.read_bytes())
    os.replace(path.with_name("new"), path)


def copy_another_over_it(path):
    other = file.CaptureWriter(path.with_name("other"))
    other.write_meta({"complete": True, "filler": "x" * (2 * path.stat().st_size)})
    other.close()
    shutil.copy(path.with_name("other"), path)


DISTURBANCES = {
    "removed": (os.remove, "has removed it"),
    "emptied": (lambda path: cut(path, 0), "has cut it off, to 0 of"),
    "cut in half": (lambda path: cut(path, path.stat().st_size // 2), "has cut it off"),
    "replaced": (put_another_in_its_place, "another file has taken its place"),
    "written over": (copy_another_over_it, "another program has written into it"),
}


@pytest.mark.parametrize("disturbance", DISTURBANCES)
def test_the_profile_is_whole_and_says_what_happened(disturbance, tmp_path):
    """Rows from before and after it are there, as if there had been no file."""
    disturb, told = DISTURBANCES[disturbance]
    path = tmp_path / "run.memwatch"
    with (
        pytest.warns(RuntimeWarning, match=rf"run\.memwatch: .*{told}.*whole"),
        memwatch.profile(path) as prof,
    ):
        work_disturbed(prof, disturb, path)
    with memwatch.profile() as whole:
        work(300)
        work(300)
    assert list(prof.ops["name"]) == list(whole.ops["name"])
    assert prof.peak_increase_bytes == whole.peak_increase_bytes
    assert "Peak" in prof.summary()
    assert [kind for kind, _ in prof.notes].count("file") == 1


def test_a_file_that_is_locked_for_a_while_is_written_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(file, "_LOCKED_S", 0.2)
    path = tmp_path / "run.memwatch"
    with memwatch.profile(path) as prof:
        work(300)
        prof.flush()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        work(300)
        prof.flush()
        other.execute("ROLLBACK")
        other.close()
    assert prof.failure is None
    assert len(memwatch.load(path).ops) == len(prof.ops) >= 600


def test_a_file_that_stays_locked_costs_no_row(tmp_path, monkeypatch):
    monkeypatch.setattr(file, "_LOCKED_S", 0.2)
    path = tmp_path / "run.memwatch"
    with pytest.warns(RuntimeWarning, match="another program has locked it"), memwatch.profile(path) as prof:
        work_disturbed(prof, lock, path)
    assert len(prof.ops) >= 600
    _locks.pop().close()


def test_a_long_recording_is_read_back_from_the_removed_file(tmp_path, monkeypatch):
    """Its copy in memory was given up, and SQLite still has the file open."""
    monkeypatch.setattr(recording, "_MOST_COPIED_BYTES", 0)
    path = tmp_path / "run.memwatch"
    with pytest.warns(RuntimeWarning, match=r"has removed it.*whole"), memwatch.profile(path) as prof:
        work_disturbed(prof, os.remove, path)
    assert len(prof.ops) >= 600


def test_a_long_recording_whose_file_was_emptied_is_an_error_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "_MOST_COPIED_BYTES", 0)
    path = tmp_path / "run.memwatch"
    with pytest.warns(RuntimeWarning, match="is lost"), memwatch.profile(path) as prof:
        work_disturbed(prof, lambda path: cut(path, 0), path)
    with pytest.raises(CaptureError, match=r"has cut it off.*what was written before is lost"):
        prof.summary()


def test_readers_of_a_growing_file_do_not_count_as_a_disturbance(tmp_path):
    path = tmp_path / "run.memwatch"
    with memwatch.profile(path) as prof:
        for _ in range(5):
            work(100)
            prof.flush()
            memwatch.load(path)
    assert prof.failure is None


def test_run_prints_a_summary_if_the_file_was_removed(tmp_path, shell_memwatch):
    """As where the disk is full: the summary, the reason as the last line, exit code 1."""
    (tmp_path / "train.py").write_text(
        "import os, torch\nx = torch.ones(1000)\nfor _ in range(100): x = x + 1\nos.remove('a.memwatch')\n"
    )
    done = shell_memwatch("run", "-o", "a.memwatch", "train.py")
    assert done.returncode == 1
    assert "Peak 7.8" in done.stderr
    assert "a.memwatch: another program has removed it" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
