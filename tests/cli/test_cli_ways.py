"""The summary ends with the command that measures the changes which it names, if they lower the peak by much."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from memwatch.cli import main

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


def summary_of(block, folder, capsys):
    """Return the summary of a recorded script."""
    (folder / "train.py").write_text(TRAINING.format(block=block))
    command = [sys.executable, "-m", "memwatch", "run", "-o", "train.memwatch", "train.py", "--epochs", "2"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert main(["summary", str(Path(folder) / "train.memwatch")]) == 0
    return capsys.readouterr().out


def test_a_summary_ends_with_the_command_that_measures_its_ways(tmp_path, capsys):
    """The limit is the lowest peak that was simulated, and the script has its arguments."""
    told = summary_of(MLP, tmp_path, capsys)
    assert "What would lower the peak" in told
    *_, heading, command = told.splitlines()
    assert heading == "To measure the changes that fit can try, within a limit:"
    assert command.endswith(
        " fit --limit 8.1MiB train.py --epochs 2"
    )  # whole, also where it exceeds the line


def test_the_command_is_left_out_if_it_measures_none_of_the_ways(tmp_path, capsys):
    """Checkpoints of layers that save little but their inputs lower nothing, and `fit` does not split the batch."""
    told = summary_of("nn.LayerNorm(128)", tmp_path, capsys)
    assert "split the batch in" in told
    assert "fit --limit" not in told
