"""A program whose memory grows with each step keeps no limit for long, and `fit` says so."""

from __future__ import annotations

import pytest

from memwatch.fit.live_bytes import LiveBytes
from memwatch.fit.program_trial import growth_of_steps

TRAINING = """
import torch
from torch import nn

model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(3)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(256, 64)).square().mean().backward()
    losses.append(model(torch.randn(256, 64)).mean(){to_number})
    optimizer.step()
"""


@pytest.mark.parametrize("to_number", ["", ".item()"])
def test_a_script_that_leaks_a_graph_in_each_step_is_told_so(to_number, shell_memwatch, tmp_path):
    (tmp_path / "train.py").write_text(TRAINING.format(to_number=to_number))
    done = shell_memwatch("fit", "--limit", "1GiB", "train.py")
    assert done.returncode == 0, done.stderr
    assert ("memwatch leaks" in done.stdout) == (not to_number)


@pytest.mark.parametrize(
    ("marked_bytes", "growth_bytes"),
    [
        ([1_100, 1_200, 1_300], 100),
        ([1_000, 1_000, 1_000], 0),
        ([1_100, 1_100, 1_200], 0),  # as where a cache is filled
        ([1_050, 1_300, 1_350], 0),  # as batches of different lengths
        ([1_100], 0),  # one step shows no growth
        ([1_001, 1_002, 1_003], 0),  # as numbers for a log
    ],
)
def test_only_steps_that_leave_about_the_same_grow(marked_bytes, growth_bytes):
    live = LiveBytes(baseline_bytes=1_000, peak_bytes=2_000, marked_bytes=marked_bytes)
    assert growth_of_steps(live) == growth_bytes
