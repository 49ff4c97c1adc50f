"""`memwatch fit SCRIPT --limit SIZE`: each way is tried on the beginning of a script."""

from __future__ import annotations

import functools
import re
import textwrap

import pytest
import torch

from memwatch.fit import program_trial
from memwatch.fit.way import Way
from memwatch.sizes import parse_bytes

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
    """The limit may follow the script's name.

    The lines name the script's own variables, and the script prints nothing.
    """
    done = fit("--ways", "checkpoint", "train.py", "--limit", "550KiB", "--epochs", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "block = net.get_submodule(name)" in done.stdout
    assert "step 0" not in done.stdout
    assert "arguments" not in done.stdout


PASTED = """
import sys
import memwatch
import torch
from torch import nn

def main(width, batch):
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, 64)) for _ in range(4)))
    adam = torch.optim.AdamW(net.parameters())

    def step():
        net(torch.randn(batch, 64)).square().mean().backward()
        adam.step()
        adam.zero_grad()

    # here
    for number in range(12):
        step()
    with memwatch.profile(holders=False) as prof:
        step()
        step()
    print("peak", prof.peak_bytes)

main(*map(int, sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("kind", "limit", "arguments"),
    [
        ("policy", "3.2MiB", "256 256"),
        ("checkpoint", "3.2MiB", "256 256"),
        ("step_in_backward", "4MiB", "512 4"),
        ("checkpoint,step_in_backward", "2.7MiB", "256 256"),
    ],
)
def test_printed_lines_give_the_printed_peak_when_you_paste_them(fit, tmp_path, kind, limit, arguments):
    """A plan that the lines load is in the file that they name."""
    arguments = arguments.split()
    (tmp_path / "train.py").write_text(PASTED)
    done = fit("--ways", kind, "--limit", limit, "train.py", *arguments)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "train.plan").exists() == (kind == "policy")
    head, _, lines = done.stdout.partition("write before the training loop:\n")
    assert {line.split()[7] for line in head.splitlines() if line.startswith(">")} == {"yes"}
    promised_bytes = parse_bytes(re.search(r"with a peak of (\S+ \S+)", " ".join(head.split())).group(1))
    script = PASTED.replace("    # here\n", textwrap.indent(lines, "    "))
    ran = fit.func(script, *arguments)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout.split("peak ")[1]) == pytest.approx(promised_bytes, rel=0.01)


def test_a_plan_is_written_where_you_say_and_replaces_nothing(fit, tmp_path):
    """An existing file is an error before anything runs; without the option memwatch takes a free name."""
    (tmp_path / "train.py").write_text(PASTED)
    for name in ("train.plan", "mine.plan"):
        (tmp_path / name).write_text("not a plan")
    of_script = ("--limit", "3.2MiB", "--ways", "policy", "train.py", "256", "256")
    refused = fit("--save-plan", "mine.plan", *of_script)
    assert refused.returncode == 1
    assert "mine.plan exists" in refused.stderr
    done = fit(*of_script)
    assert done.returncode == 0, done.stderr
    assert "load_plan('train-2.plan')" in done.stdout
    assert "wrote train-2.plan" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {
        "train.py", "train.plan", "mine.plan", "train-2.plan",
    }  # fmt: skip
    assert (tmp_path / "train.plan").read_text() == "not a plan"


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
