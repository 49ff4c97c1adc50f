"""While memory grows with each pass, the views say so first: other changes, and their code, come after that."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import memwatch
from memwatch.cli import main
from memwatch.report.facts import listed_ways, shown_ways

TRAINING = """
import torch
from torch import nn

class Log:
    def __init__(self):
        self.losses = []

log = Log()
model = nn.Sequential(*[nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(256, 128)).square().mean().backward()
    optimizer.step()
    {line}
"""
GROWS = "log.losses.append(model(torch.randn(256, 128)).mean())"
STAYS = "log.losses.append(model(torch.randn(256, 128)).mean().item())"


@pytest.fixture(scope="module", params=[GROWS, STAYS], ids=["grows", "stays"])
def recorded(request, tmp_path_factory):
    """Return whether memory grows, the folder, and the capture of a training."""
    folder = tmp_path_factory.mktemp("growth")
    (folder / "train.py").write_text(TRAINING.format(line=request.param))
    command = [sys.executable, "-m", "memwatch", "run", "-o", "train.memwatch", "train.py"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return request.param == GROWS, folder / "train.memwatch"


@pytest.mark.words
def test_the_summary_names_the_growth_first_and_lists_other_changes_only_without_it(recorded, capsys):
    grows, capture = recorded
    assert main(["summary", str(capture)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert ("Memory grows by" in told) == grows
    assert ("The largest part of the peak is" in told) == (not grows)
    assert ("Code for the change" in told) == (not grows)
    assert (" leaks train.py" in told) == grows
    assert (" fit --limit " in told) == (not grows)


def test_the_page_opens_the_code_of_a_change_only_where_nothing_grows(recorded, tmp_path):
    grows, capture = recorded
    reading = memwatch.load(capture)
    assert len(reading.ways)
    assert any(finding.growth_bytes for finding in reading.findings) == grows
    reading.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count('<details class="way"') == len(reading.ways)
    assert ('<details class="way" open>' in page) == (not grows)


def profile_of_a_large_table():
    """Return the profile of two steps whose memory is that of an embedding and its optimizer."""
    model = nn.Embedding(20_000, 64)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with memwatch.profile() as prof:
        for _ in range(2):
            model(torch.arange(64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return prof


def test_a_change_that_a_finding_asks_for_is_not_listed_again():
    prof = profile_of_a_large_table()
    assert "fused" in [finding.kind for finding in prof.findings]
    assert "fused" in list(prof.ways["kind"])
    assert prof.summary(rows=20).count("fused=True") == 1


def test_a_line_of_code_is_not_wrapped():
    prof = profile_of_a_large_table()
    ways = listed_ways(prof)
    lines = ways["lines"][shown_ways(ways, 2)[1]].splitlines()
    assert max(map(len, lines)) > 40
    assert all(line in prof.summary(width=40, rows=2) for line in lines)
