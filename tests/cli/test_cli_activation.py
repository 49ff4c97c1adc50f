"""MEMWATCH in the environment records a program that knows nothing of memwatch, and whatever it starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import memwatch
from memwatch.cli.common import memwatch_command

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
import torch
model = torch.nn.Linear(64, 64)
model(torch.ones(256, 64)).sum().backward()
"""
MAIN = """
import multiprocessing, torch
def work(rows):
    return torch.ones(rows, 64).sum().item()
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [1]))
"""
RANKS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.ones(1024 * (1 + dist.get_rank()))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Return a Python that finds memwatch and the others' packages, with the line that the wheel installs."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "a.pth").write_text(f"{ROOT}\n{sysconfig.get_paths()['purelib']}\n")
    (packages / "memwatch.pth").write_bytes((ROOT / "memwatch/cli/memwatch.pth").read_bytes())
    return folder / "bin" / "python"


@pytest.fixture
def run(python, tmp_path):
    """Return a function that runs this Python in a new folder, which has the scripts above."""
    for name, text in (("train", TRAIN), ("main", MAIN), ("ranks", RANKS)):
        (tmp_path / f"{name}.py").write_text(text)

    def run(*words, told="1"):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MEMWATCH")}
        environment |= {} if told is None else {"MEMWATCH": told}
        environment.pop("PYTHONPATH", None)
        return subprocess.run(
            [python, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    return run


FAILS = """
import torch
def step():
    scores = torch.ones(1 << 20)
    torch.empty(1 << 50)
print("begin", flush=True)
if __name__ == "__main__":
    step()
"""


def test_memory_that_runs_out_has_a_report_without_a_change(run, tmp_path):
    (tmp_path / "fails.py").write_text(FAILS)
    plain, seen = run("fails.py", told=None), run("fails.py", told="oom,out=dumps/{rank}")
    assert (seen.returncode, seen.stdout) == (plain.returncode, plain.stdout) == (1, "begin\n")
    assert plain.stderr.splitlines()[-1] in seen.stderr.splitlines()
    assert "local `scores` of step" in (tmp_path / "dumps/0.oom.txt").read_text()
    assert sorted(file.name for file in (tmp_path / "dumps").iterdir()) == [
        "0.oom.html", "0.oom.json", "0.oom.txt",
    ]  # fmt: skip


def captures(folder):
    return sorted(path.name for path in folder.rglob("*.memwatch"))


@pytest.mark.parametrize("words", [["train.py"], ["-m", "train"]])
def test_a_program_is_recorded_without_a_change(words, run, tmp_path):
    done = run(*words, told="out=kept/{rank}.memwatch")
    assert done.returncode == 0, done.stderr
    assert captures(tmp_path) == ["0.memwatch"]
    reading = memwatch.load(tmp_path / "kept/0.memwatch")
    assert reading.meta["complete"]
    assert reading.peak_increase_bytes > 2 * 64 * 256 * 4
    wrote, command = done.stderr.splitlines()
    assert wrote.startswith("memwatch: wrote ")
    # this Python has no `memwatch` beside it
    assert command.split()[1:4] == ["-m", "memwatch", "summary"]


def test_nothing_of_memwatch_is_imported_where_nobody_asks(run):
    told = "import sys; print('memwatch' in sys.modules)"
    assert run("-c", told, told=None).stdout == "False\n"
    assert run("-c", f"import torch; {told}", told=None).stdout == "False\n"


@pytest.mark.parametrize("told", ["banana=1", "limit=8giga", "every=0", "stacks=yes", "out=", "attach,out=a"])
def test_a_wrong_option_stops_the_program_before_it_starts(told, run, tmp_path):
    done = run("-c", "print('ran')", told=told)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("memwatch: error: ")
    assert captures(tmp_path) == []


def test_a_program_can_let_clients_in_without_being_recorded(run, tmp_path):
    code = "import threading, torch; torch.ones(1); print([each.name for each in threading.enumerate()])"
    done = run("-c", code, told="attach")
    assert (done.returncode, done.stderr) == (0, "")
    assert "memwatch-attach" in done.stdout
    assert captures(tmp_path) == []


def test_a_process_that_runs_no_op_leaves_no_file(run, tmp_path):
    done = run("-c", "import torch; print('ran')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
    assert captures(tmp_path) == []


def test_a_file_that_exists_stays_as_it_is(run, tmp_path):
    (tmp_path / "mine.memwatch").write_text("mine")
    assert run("train.py", told="out=mine.memwatch,quiet=1").stderr == ""
    assert (tmp_path / "mine.memwatch").read_text() == "mine"
    assert len(captures(tmp_path)) == 2


def test_a_program_that_fails_ends_as_it_does_plainly(run, tmp_path):
    """Traceback and exit code are the program's, and the recording is whole."""
    (tmp_path / "bad.py").write_text(TRAIN + "raise ValueError('mine')\n")
    plain, done = run("bad.py", told=None), run("bad.py", told="out=bad.memwatch,quiet=1")
    assert (done.returncode, done.stderr) == (plain.returncode, plain.stderr)
    assert memwatch.load(tmp_path / "bad.memwatch").meta["complete"]


def test_a_limit_stops_the_program(run, tmp_path):
    done = run("train.py", told="limit=16KiB")
    assert done.returncode == 1
    assert "MemoryLimitError" in done.stderr


@pytest.mark.parametrize("told", ["out=job.memwatch", "out=job.memwatch,children=1"])
def test_workers_that_are_spawned_are_recorded_too(told, run, tmp_path):
    done = run("main.py", told=told)
    assert done.stdout == "[64.0]\n", done.stderr
    peaks = [memwatch.load(path).peak_increase_bytes for path in tmp_path.glob("job.*memwatch")]
    assert max(peaks) >= 64 * 4


def test_each_rank_of_torchrun_has_its_file(run, tmp_path):
    done = run(
        "-m", "torch.distributed.run", "--nproc-per-node", "2", "ranks.py", told="out=rank{rank}.memwatch"
    )
    assert done.returncode == 0, done.stderr
    assert captures(tmp_path) == ["rank0.memwatch", "rank1.memwatch"]
    ranks = [memwatch.load(tmp_path / name) for name in captures(tmp_path)]
    assert [rank.meta["rank"] for rank in ranks] == [0, 1]
    assert ranks[1].peak_increase_bytes >= 2 * 4096


def test_monitor_watches_the_process_and_prints_its_report(run, tmp_path):
    done = run("train.py", told="monitor,out=kept/{pid}.jsonl,interval=1000")
    assert done.returncode == 0, done.stderr
    assert "memwatch: process" in done.stderr
    assert "native, at start" in done.stderr
    assert "not known whether a row grows: 2 samples of the 15 that are needed" in done.stderr
    (file,) = (tmp_path / "kept").iterdir()
    assert len(file.read_text().splitlines()) == 2
    assert not captures(tmp_path)


@pytest.mark.parametrize(
    "told", ["monitor,limit=1GiB", "monitor,interval=0", "monitor,interval=often", "watch"]
)
def test_a_wrong_option_of_the_monitor_ends_the_program_before_it_starts(told, run):
    done = run("train.py", told=told)
    assert done.returncode == 2
    assert "memwatch: error: MEMWATCH" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_is_that_of_the_own_python_where_memwatch_did_not_start_the_process(monkeypatch):
    """The first word of such a process is a script of the user."""
    monkeypatch.setattr(sys, "argv", ["train.py"])
    command = memwatch_command()
    assert "train.py" not in command
    program = shutil.which(command[0])
    assert os.path.dirname(program) == os.path.dirname(sys.executable)
    monkeypatch.setattr(sys, "executable", "/no/python")
    assert memwatch_command() == ["/no/python", "-m", "memwatch"]
