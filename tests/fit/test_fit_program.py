"""`memwatch fit SCRIPT --limit SIZE`: each way is tried on the beginning of a script."""

from __future__ import annotations

import functools

import pytest
import torch

from memwatch.fit import program_trial
from memwatch.fit.way import Way

_MEMWATCH = """
import sys
from memwatch.cli import main
sys.exit(main())
"""

SCRIPT = """
import sys
import torch
from torch import nn

def main():
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(3)))
    adam = torch.optim.AdamW(net.parameters())
    for number in range(100_000_000):
        net(torch.randn(256, 16)).square().mean().backward()
        adam.step()
        adam.zero_grad()
        print("step", number)

print("arguments", sys.argv[1:])
if __name__ == "__main__":
    main()
"""


@pytest.fixture
def fit(fresh_python, tmp_path):
    """Run `memwatch fit` beside a script, in a process of its own."""
    (tmp_path / "train.py").write_text(SCRIPT)
    return functools.partial(fresh_python, _MEMWATCH, "fit")


def test_a_script_is_fitted(fit):
    """The limit may stand behind the script; the lines name the script's own variables, and it prints nothing."""
    done = fit("--ways", "checkpoint", "train.py", "--limit", "550KiB", "--epochs", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "block = net.get_submodule(name)" in done.stdout
    assert "step 0" not in done.stdout
    assert "arguments" not in done.stdout


@pytest.mark.words
def test_a_limit_that_no_way_keeps_is_a_finding(fit):
    """The message names the obstacle. Without a limit the usage is wrong."""
    done = fit("--ways", "checkpoint", "--limit", "10KiB", "train.py")
    assert done.returncode == 1
    assert "are alive before the step begins" in done.stderr
    assert fit("train.py").returncode == 2


def test_a_planned_way_that_cannot_be_measured_is_left_out_and_said(monkeypatch):
    """A program that keeps a graph whose backward never runs leaves memwatch measuring: the other ways go on."""

    def program():
        net = torch.nn.Linear(4, 4)
        sgd = torch.optim.SGD(net.parameters())
        for _ in range(9):
            net(torch.ones(2, 4)).sum().backward()
            sgd.step()

    monkeypatch.setattr(Way, "is_planned", True)
    monkeypatch.setattr(program_trial, "can_measure", lambda: False)
    measured = program_trial.ProgramTrial(lambda: program, steps=2).run(Way())
    assert measured.peak_bytes is None
    assert "whose backward does not run" in measured.failure
