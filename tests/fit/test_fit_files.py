"""`memwatch fit` and `memwatch estimate` run the beginning of a script, and the user's files stay as they are."""

from __future__ import annotations

import functools
import glob
import hashlib
import re
import sqlite3
import time
from typing import TYPE_CHECKING

import pytest

import memwatch

if TYPE_CHECKING:
    from pathlib import Path

_WITHOUT_OVERLAYS = """
from memwatch import private_files

def refused():
    raise OSError(1, "Operation not permitted")

private_files._enter_namespace = refused
"""

_RUN = """
import sys
from memwatch.cli import main
sys.exit(main())
"""

TRAIN = """
import atexit, os, shutil, sqlite3, subprocess, sys
import numpy as np
import torch
from torch import nn

{before}
torch.manual_seed(0)
net = nn.Sequential(*(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(3)))
adam = torch.optim.AdamW(net.parameters())
for number in range(100_000_000):
    net(torch.randn(256, 16)).square().mean().backward()
    adam.step()
    adam.zero_grad()
"""

WRITES = """
assert not os.path.exists("run/resumed"), "a run found what the run before it wrote"
net = nn.Linear(2, 2)
torch.save(net.state_dict(), "run/last.pt")  # in C++
np.save("run/array.npy", np.ones(3))
with open(os.path.abspath("run/log.txt"), "a") as log:
    log.write("a line")
with sqlite3.connect("run/runs.db") as database:
    database.execute("INSERT INTO runs VALUES (2)")
shutil.rmtree("run/checkpoint-100")  # as Trainer does with save_total_limit
os.makedirs("run/checkpoint-200")
open("run/resumed", "w").close()
os.replace("run/resumed", "run/best.pt")
open("run/resumed", "w").close()
subprocess.check_call(["rm", "run/final.pt"])
os.truncate("run/long.txt", 1)
atexit.register(lambda: open(FOLDER + "/run/log.txt", "a").write("the end"))
FOLDER = os.getcwd()
os.chdir("run")
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with the files of an earlier run."""
    run = tmp_path / "run"
    (run / "checkpoint-100").mkdir(parents=True)
    for name in (
        "last.pt",
        "final.pt",
        "best.pt",
        "log.txt",
        "long.txt",
        "array.npy",
        "checkpoint-100/model.pt",
    ):
        (run / name).write_text(f"{name} of an earlier run")
    with sqlite3.connect(run / "runs.db") as database:
        database.execute("CREATE TABLE runs (number)")
    database.close()
    return tmp_path


@pytest.fixture
def fit(shell_memwatch):
    """Run `memwatch fit` in a process of its own, and in the test's folder."""
    return functools.partial(shell_memwatch, "fit", "--ways", "checkpoint", "--limit", "550KiB")


@pytest.fixture
def _overlays(fresh_python):
    """Skip where the kernel gives a process no file systems of its own, as in most containers."""
    done = fresh_python("from memwatch.private_files import PrivateFiles; print(PrivateFiles().refuses)")
    if done.stdout.strip() != "False":
        pytest.skip("the kernel refuses overlays here")


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in folder.rglob("*")
    }


@pytest.mark.usefixtures("_overlays")
def test_no_file_of_the_user_changes(folder, fit, beside_progress):
    """Each run begins with the user's files. Its own writes and deletions are dropped."""
    (folder / "train.py").write_text(TRAIN.format(before=WRITES))
    before = contents(folder)
    done = fit("train.py")
    assert (done.returncode, beside_progress(done.stderr)) == (0, "")
    assert re.search(r"the fastest way that fits is checkpoint `0`", done.stdout)
    assert contents(folder) == before
    said = " ".join(done.stdout.split())
    assert "the script wrote or deleted 9 files, such as" in said
    assert "memwatch dropped these changes" in said


@pytest.mark.usefixtures("_overlays")
def test_no_file_of_the_user_changes_if_no_way_fits(folder, shell_memwatch):
    (folder / "train.py").write_text(TRAIN.format(before=WRITES))
    before = contents(folder)
    done = shell_memwatch("fit", "--ways", "gradients", "--limit", "1KiB", "train.py")
    assert done.returncode == 1
    assert contents(folder) == before
    assert "the script wrote or deleted 9 files, such as" in done.stderr


def test_a_script_that_writes_nothing_gets_no_note(folder, fit, beside_progress):
    (folder / "train.py").write_text(TRAIN.format(before=""))
    done = fit("train.py")
    assert (done.returncode, beside_progress(done.stderr)) == (0, "")
    assert "dropped" not in done.stdout


@pytest.mark.parametrize("write", ['open("run/log.txt", "a")', 'torch.save(net.state_dict(), "run/last.pt")'])
def test_where_the_kernel_refuses_overlays_a_write_is_an_error(folder, fresh_python, write):
    """Every file stays as it is. The script's own error names the file, and a line advises the user."""
    (folder / "train.py").write_text(TRAIN.format(before=f"net = nn.Linear(2, 2)\n{write}"))
    before = contents(folder)
    done = fresh_python(_WITHOUT_OVERLAYS + _RUN, "fit", "--limit", "550KiB", "train.py")
    assert done.returncode == 1
    assert "run/" in done.stderr
    assert "add --in-place" in done.stderr
    assert contents(folder) == before


@pytest.mark.usefixtures("_overlays")
def test_an_error_of_the_script_is_its_own(folder, fit):
    """Overlays hold the changes, so every write succeeds and no line mentions it."""
    (folder / "train.py").write_text(TRAIN.format(before='open("/proc/1/mem", "rb").read(1)'))
    done = fit("train.py")
    assert done.returncode == 1
    assert "OSError" in done.stderr or "PermissionError" in done.stderr
    assert "--in-place" not in done.stderr


def test_where_the_kernel_refuses_overlays_a_script_that_writes_nothing_is_fitted(
    folder, fresh_python, beside_progress
):
    (folder / "train.py").write_text(TRAIN.format(before=""))
    done = fresh_python(
        _WITHOUT_OVERLAYS + _RUN, "fit", "--ways", "checkpoint", "--limit", "550KiB", "train.py"
    )
    assert (done.returncode, beside_progress(done.stderr)) == (0, "")


def test_without_any_protection_the_script_does_not_run(folder, fresh_python):
    (folder / "train.py").write_text(TRAIN.format(before='open("run/log.txt", "a").write("a line")'))
    before = contents(folder)
    no_landlock = "\nprivate_files._LANDLOCK_WITH_TRUNCATE = 1000\n"
    done = fresh_python(_WITHOUT_OVERLAYS + no_landlock + _RUN, "fit", "--limit", "550KiB", "train.py")
    assert done.returncode == 1
    assert "Run it in a copy of its folder, and add --in-place" in done.stderr
    assert contents(folder) == before


def test_in_place_the_script_writes(folder, fit, beside_progress):
    (folder / "train.py").write_text(TRAIN.format(before='open("run/log.txt", "a").write("a line")'))
    done = fit("--in-place", "train.py")
    assert (done.returncode, beside_progress(done.stderr)) == (0, "")
    assert "a line" in (folder / "run" / "log.txt").read_text()


@pytest.mark.usefixtures("_overlays")
def test_nothing_is_left_of_the_private_files(folder, fresh_python):
    """Another process removes them, however the process ends."""
    code = """
import os, signal
from memwatch.private_files import PrivateFiles
files = PrivateFiles()
open("run/new", "w").write("new")
print(*files._bases, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = fresh_python(code)
    bases = done.stdout.split()
    assert bases
    for _ in range(100):
        if not any(map(glob.glob, bases)):
            break
        time.sleep(0.1)
    assert not any(map(glob.glob, bases))
    assert not (folder / "run" / "new").exists()


@pytest.fixture
def estimate(shell_memwatch):
    return functools.partial(shell_memwatch, "estimate")


@pytest.mark.usefixtures("_overlays")
def test_an_estimate_changes_no_file_of_the_user(folder, estimate):
    (folder / "train.py").write_text(TRAIN.format(before=WRITES))
    before = contents(folder)
    done = estimate("train.py")
    assert done.returncode == 0
    assert contents(folder) == before
    assert "memwatch: the script wrote or deleted 8 files, such as" in done.stderr


def test_an_estimate_writes_what_the_user_asked_for_and_nothing_else(folder, estimate):
    """The capture and the page are written whole, by a process outside the private view."""
    (folder / "train.py").write_text(TRAIN.format(before=""))
    before = contents(folder)
    done = estimate("-o", "run/train.memwatch", "--html", "train.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert set(contents(folder)) - set(before) == {"run/train.memwatch", "run/train.html"}
    again = estimate("-o", "run/train.memwatch", "train.py")
    assert again.returncode == 1
    assert "exists; choose another name with -o" in again.stderr
    replaced = estimate("-f", "-o", "run/train.memwatch", "train.py")
    assert (replaced.returncode, replaced.stderr) == (0, "")
    assert memwatch.load(folder / "run" / "train.memwatch").peak_bytes > 0


def test_a_script_that_fails_in_an_estimate_leaves_no_file(folder, estimate):
    (folder / "train.py").write_text(TRAIN.format(before="1 / 0"))
    before = contents(folder)
    done = estimate("-o", "run/train.memwatch", "train.py")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert contents(folder) == before


def test_where_the_kernel_refuses_overlays_an_estimate_of_a_script_that_writes_fails(folder, fresh_python):
    (folder / "train.py").write_text(TRAIN.format(before='open("run/log.txt", "a")'))
    before = contents(folder)
    done = fresh_python(_WITHOUT_OVERLAYS + _RUN, "estimate", "-o", "run/train.memwatch", "train.py")
    assert done.returncode == 1
    assert "add --in-place" in done.stderr
    assert contents(folder) == before


def test_in_place_the_script_writes_in_an_estimate(folder, estimate):
    (folder / "train.py").write_text(TRAIN.format(before='open("run/log.txt", "a").write("a line")'))
    done = estimate("--in-place", "-o", "run/train.memwatch", "train.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert "a line" in (folder / "run" / "log.txt").read_text()
    assert (folder / "run" / "train.memwatch").exists()
