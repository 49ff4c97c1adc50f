"""The guide for assistants: every command in it works, in its order, on a program that leaks."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from memwatch.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "memwatch" / "cli" / "skill.md"
TRAIN = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
torch.set_num_threads(1)
blocks = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)]
model = nn.Sequential(*blocks, nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []


def validate():
    history.append(cross_entropy(model(torch.randn(128, 64)), torch.randint(10, (128,))))


if __name__ == "__main__":
    for step in range(14):
        loss = cross_entropy(model(torch.randn(128, 64)), torch.randint(10, (128,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        validate()
"""
MENDED = TRAIN.replace("(128,))))\n\n\nif", "(128,))).item())\n\n\nif")
TEST = "import train\n\n\ndef test_validate():\n    for _ in range(3):\n        train.validate()\n"
FAILING = {"memwatch run -q -o limited.memwatch --limit 4MiB train.py": "MemoryLimitError"}
"""Commands that end with 1 on any program of this size, and their output then."""


def commands():
    """Return the commands of the guide in order."""
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.fixture
def shell(shell_memwatch, tmp_path):
    """Return a function that runs a command as a user types it, in a folder with a program that leaks."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "test_train.py").write_text(TEST)

    def run(command, **environment):
        program, *arguments = shlex.split(command)
        environment["OMP_NUM_THREADS"] = "1"
        if program == "memwatch":
            return shell_memwatch(*arguments, **environment)
        return subprocess.run(
            [sys.executable, "-m", program, *arguments], cwd=tmp_path, env={**os.environ, **environment},
            capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip

    return run


@pytest.mark.whole
def test_every_command_of_the_guide_works_on_a_program_that_leaks(shell, tmp_path):
    """Before the fix the leak is found, after it the exit codes are 0; each command prints the guide's words."""
    assert MENDED != TRAIN
    for rank in range(2):
        shell("memwatch run -q -o 'job.{rank}.memwatch' train.py", RANK=str(rank), WORLD_SIZE="2")
    leaking = True
    listed = commands()
    assert len(listed) > 15
    printed = {}
    for number, command in enumerate(listed):
        if leaking and command == "memwatch leaks train.py" and command in listed[:number]:
            (tmp_path / "train.py").write_text(MENDED)
            leaking = False
        done = shell(command)
        found = "kept alive by" in done.stdout or FAILING.get(command, "\0") in done.stderr
        told = f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == (1 if found else 0), told
        assert command not in FAILING or found, told
        assert (command == "memwatch leaks train.py" and leaking) <= found, told
        printed.setdefault(command, done.stdout)
    assert not leaking
    summary = printed["memwatch summary -n 5 before.memwatch"]
    assert summary.startswith("Peak ")
    assert all(
        word in summary for word in ("Category", "Who holds it", "Lines", "Findings", "global `history`")
    )
    leak = printed["memwatch leaks train.py"]
    assert all(
        word in leak for word in ("kept alive by", "made at", "path", "advice", "keeps its autograd graph")
    )
    assert " -> " in printed["memwatch diff before.memwatch after.memwatch"].splitlines()[0]
    assert "Bitwise" in printed["memwatch fit --limit 3MiB train.py"]


def test_the_fields_of_the_json_that_the_guide_names_exist():
    from memwatch.report.records import schema

    named = schema.FindingRecord.__annotations__
    assert {"site", "advice", "path", "predicted_peak_bytes"} <= set(named)


def test_the_verb_prints_the_guide(capsys):
    """It is Markdown with a name and a description at its head, short enough to be read at once."""
    assert main(["skill"]) == 0
    text = capsys.readouterr().out
    assert text == GUIDE.read_text(encoding="utf-8")
    assert re.match(r"---\nname: memwatch\ndescription: .+\n---\n\n# ", text)
    assert len(text.splitlines()) < 200


def test_every_verb_that_the_guide_names_exists():
    """Commands inside a sentence are not run by a test, so their verbs are checked here."""
    from memwatch.cli.main import VERBS

    verbs = set(re.findall(r"`memwatch ([a-z]+)", GUIDE.read_text(encoding="utf-8")))
    assert verbs <= {*VERBS}
