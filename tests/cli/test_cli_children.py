"""Processes that a program under `memwatch run` starts: recorded with `--children`, told without."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import memwatch
from memwatch.words.processes import StartedAs, started_text

PROGRAM = """
import multiprocessing, torch
from torch.utils.data import DataLoader

def work(count):
    torch.ones(count).exp()

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, number):
        return torch.ones(3000).exp()

if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=work, args=(1000,))
    child.start()
    child.join()
    for _ in DataLoader(Data(), num_workers=1):
        pass
    child = multiprocessing.get_context("spawn").Process(target=work, args=(2000,))
    child.start()
    child.join()
"""


def test_children_record_into_files_of_their_own(shell_memwatch, tmp_path):
    """Forked, spawned and DataLoader workers: their own peaks, and one reading of all; `sitecustomize` still runs."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.stderr.write('customized\\n')")
    home = str(Path(memwatch.__file__).parents[1])
    done = shell_memwatch(
        "run", "--children", "-o", "a.memwatch", "program.py", PYTHONPATH=f"{tmp_path}:{home}"
    )
    assert done.returncode == 0, done.stderr
    assert "and 3 of processes that it started" in done.stderr
    assert "customized" in done.stderr
    ranks = memwatch.merge(tmp_path.glob("a*.memwatch"))
    peaks = sorted(ranks.ranks["peak_bytes"])
    assert len(peaks) == 4
    assert {2 * 4 * 1000, 2 * 4 * 2000} <= set(peaks)
    parents = set(ranks.ranks["parent_pid"]) & set(ranks.ranks["pid"])
    assert len(parents) == 1


def test_children_that_record_nothing_are_told():
    """Without `--children` a note counts the processes that started, by kind."""
    with memwatch.profile(stacks=False) as prof:
        child = multiprocessing.get_context("fork").Process(target=int)
        child.start()
        child.join()
        for _ in range(2):
            subprocess.run([sys.executable, "-ISc", "pass"], check=True)
        subprocess.run(["true"], check=True)
    (note,) = prof.remarks("children")
    assert note.startswith("1 process of multiprocessing and 2 Python programs started in the block: ")
    assert ("children", note) in prof.notes


def test_forks_of_the_program_s_own_are_told_as_what_no_option_records():
    """`os.fork()` is not reached by `--children`: no sentence says that it would be, or that it was."""
    with memwatch.profile(stacks=False) as prof:
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    (note,) = prof.remarks("children")
    assert note.startswith("1 fork started in the block: ")
    assert note.endswith(
        "`memwatch run --children` records none of them: a process made by os.fork() records nothing."
    )
    counts = {StartedAs.MULTIPROCESSING: 2, StartedAs.PYTHON: 1, StartedAs.FORK: 1}
    text = started_text(counts, {StartedAs.FORK: 1}, asked=False)
    assert text.endswith("records them too, but not 1 fork: a process made by os.fork() records nothing.")
    text = started_text(counts, {StartedAs.FORK: 1}, asked=True)
    assert text.startswith("2 processes of multiprocessing and 1 Python program started in the block. Each")
    assert text.endswith(
        "1 fork started in the block without recording: a process made by os.fork() records nothing."
    )
    assert "Each process" not in started_text({StartedAs.FORK: 1}, {StartedAs.FORK: 1}, asked=True)
