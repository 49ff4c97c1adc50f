"""The summary ends with the command that measures the changes which it names, if they lower the peak by much."""

from __future__ import annotations

import pytest

import memwatch
from memwatch.cli import main
from memwatch.sizes import parse_bytes

TRAINING = """
import torch
from torch import nn

model = nn.Sequential(*[{block} for _ in range(6)])
batch = torch.randn(512, 128)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""
MLP = "nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))"


@pytest.fixture
def summary_of(shell_memwatch, tmp_path, capsys):
    """Return the summary of a recorded script."""

    def run(block, script=TRAINING):
        (tmp_path / "train.py").write_text(script.format(block=block))
        done = shell_memwatch("run", "-o", "train.memwatch", "train.py", "--epochs", "2")
        assert done.returncode == 0, done.stderr
        assert main(["summary", str(tmp_path / "train.memwatch")]) == 0
        return capsys.readouterr().out

    return run


def test_a_summary_ends_with_the_command_that_measures_its_ways(summary_of):
    """The limit is the lowest peak that was simulated, and the script has its arguments."""
    told = summary_of(MLP)
    assert "What would lower the peak" in told
    *_, heading, command = told.splitlines()
    assert heading == "To run the changes and measure the peak and the time of each:"
    assert command.endswith(
        " fit --limit 8.1MiB train.py --epochs 2"
    )  # whole, also where it exceeds the line


def test_the_limit_of_a_small_program_is_below_its_peak(summary_of, tmp_path):
    """A limit above the peak would measure the program itself and no change."""
    script = TRAINING.replace("512, 128", "64, 8")
    *_, command = summary_of(
        "nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))", script
    ).splitlines()
    limit = command.partition(" --limit ")[2].partition(" ")[0]
    prof = memwatch.load(tmp_path / "train.memwatch")
    assert prof.ways["peak_bytes"].min() <= parse_bytes(limit) < prof.peak_bytes


def test_the_command_is_left_out_if_it_measures_none_of_the_ways(summary_of):
    """Checkpoints of layers that save little but their inputs lower nothing, and `fit` does not split the batch."""
    told = summary_of("nn.LayerNorm(128)")
    assert "split the batch in" in told
    assert "fit --limit" not in told


DISTILLATION = """
import torch
from torch import nn

def model(blocks):
    return nn.Sequential(*[nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(blocks)])

teacher, student = model({teacher}), model({student})
batch = torch.randn(512, 128)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    (student(batch) - teacher(batch)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("blocks", "is_offered"), [((6, 1), False), ((1, 6), True)], ids=["teacher", "student"]
)
def test_the_command_is_left_out_if_the_ways_change_a_model_without_an_optimizer(
    blocks, is_offered, summary_of
):
    """`fit` changes the first model that has an optimizer, so a teacher stays as it is."""
    teacher, student = blocks
    told = summary_of("", DISTILLATION.format(teacher=teacher, student=student))
    assert "What would lower the peak" in told
    assert ("fit --limit" in told) == is_offered
