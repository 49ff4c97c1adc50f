"""`memwatch plan` and `memwatch replay`: from a recorded run to a measured plan."""

from __future__ import annotations

import json
import re

import pytest
import torch

import memwatch
from memwatch.cli.main import main
from memwatch.planner.plan import load_plan
from memwatch.report import plan_summary


@pytest.fixture(scope="module")
def replayable(tmp_path_factory):
    """Record a training step into a file, with the arguments that a replay needs."""
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("plan") / "step.memwatch"
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(4)]
    model = torch.nn.Sequential(*layers)
    with memwatch.profile(path, replay=True):
        model(torch.ones(256, 64)).sum().backward()
    return path


def test_a_plan_is_printed_kept_and_measured(replayable, tmp_path, capsys, monkeypatch):
    """The plan fits its budget, and its replay measures the peak that it says."""
    monkeypatch.setenv("COLUMNS", "120")
    kept = tmp_path / "step.plan"
    assert main(["plan", str(replayable), "--budget", "70%", "-o", str(kept)]) == 0
    plan = load_plan(kept)
    assert plan.peak_increase_bytes <= 0.7 * plan.program_peak_increase_bytes
    *said, blank, following = capsys.readouterr().out.splitlines()
    told = plan_summary(plan, reading=memwatch.load(replayable)).splitlines()
    assert said[0] == told[0]
    assert len(said) == len(told)
    assert not blank
    assert following.endswith(f"replay {replayable} --plan {kept}")
    assert main(["replay", str(replayable), "--plan", str(kept), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["peak_increase_bytes"] == plan.peak_increase_bytes
    assert record["replay"]["peak_increase_bytes"] <= record["replay"]["planned_bytes"]
    assert main(["replay", str(replayable), "--plan", str(kept)]) == 0
    (replayed,) = re.findall("replayed .*", capsys.readouterr().out)
    assert "as planned, to the byte" in replayed
    assert main(["plan", str(replayable), "-o", str(kept)]) == 1
    assert re.fullmatch(r"memwatch: error: \S+ exists; .* -f\n", capsys.readouterr().err)


def test_a_budget_out_of_reach_is_a_finding(replayable, capsys):
    """The error names the budget, and the lowest plan is printed all the same."""
    assert main(["plan", str(replayable), "--budget", "1 KiB"]) == 1
    said = capsys.readouterr()
    assert re.match(r"memwatch: error: [^\n]*1\.00 KiB", said.err)
    assert "peak increase" in said.out


@pytest.mark.parametrize("budget", ["fish", "-5%", "nan%", "12 parsecs", "1e999"])
def test_a_budget_that_is_none_is_named(replayable, budget, capsys):
    """A budget that is neither a size nor a share is wrong usage. The error repeats it and gives examples."""
    with pytest.raises(SystemExit, match="2"):
        main(["plan", str(replayable), f"--budget={budget}"])
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(rf"memwatch plan: error: argument --budget: '{budget}' is not a .*", line)


def test_what_cannot_be_planned_is_one_clear_line(replayable, narrow, tmp_path, capsys):
    """A run without --replay, and a plan of another program are refused."""
    foreign = tmp_path / "foreign.plan"
    foreign.write_text("{}")
    for words in (
        ["plan", str(narrow)],
        ["replay", str(replayable), "--plan", str(foreign)],
        ["replay", str(replayable), "--plan", str(tmp_path / "missing.plan")],
        ["replay", str(narrow), "--plan", str(foreign)],
    ):
        assert main(words) == 1
        assert re.fullmatch(r"memwatch: error: [^\n]+\n", capsys.readouterr().err)
