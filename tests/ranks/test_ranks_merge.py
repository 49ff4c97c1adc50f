"""Captures of many ranks as one reading: whole, cut, missing, or from another version."""

from __future__ import annotations

import json
import shutil
import sqlite3
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

import memwatch
from memwatch.capture.file import add_summary
from memwatch.cli.main import main
from memwatch.kinds.roles import CATEGORIES
from memwatch.ranks.job import category_spreads, differences
from memwatch.ranks.summary import Member, summarise
from memwatch.report.page.write import json_for_script
from memwatch.sizes import format_bytes

WIDTHS = (16, 64, 32)
"""Of the batches: rank 1 has the highest peak."""


def train(rows):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    for _ in range(3):
        model(torch.ones(rows, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Record a training for each rank, with the environment of its launcher."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.set_num_threads(1)
    readings = []
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("WORLD_SIZE", str(len(WIDTHS)))
        for rank, rows in enumerate(WIDTHS):
            environment.setenv("RANK", str(rank))
            with memwatch.profile(folder / f"run.rank{rank}.memwatch") as prof:
                train(rows)
            readings.append(prof)
    return folder, readings


@pytest.fixture
def captures(recorded, tmp_path):
    """Copy the captures, to change them."""
    return [Path(shutil.copy(path, tmp_path)) for path in sorted(recorded[0].glob("*.memwatch"))]


def change_meta(capture, **changes):
    with sqlite3.connect(capture) as database:
        for key, value in changes.items():
            database.execute("DELETE FROM meta WHERE key = ?", (key,))
            database.execute("INSERT INTO meta VALUES (?, ?)", (key, json.dumps(value)))
    database.close()


def kinds(ranks):
    return [kind for kind, _ in ranks.notes]


def test_the_figures_of_a_rank_are_those_of_its_reading(recorded, captures):
    """Peak, increase, categories, steps and ops: a merge and `load` say the same."""
    ranks = memwatch.merge(captures)
    assert ranks.notes == []
    assert ranks.compared == ["rank 0", "rank 1", "rank 2"]
    for name, prof in zip(ranks.compared, recorded[1], strict=True):
        row = ranks.ranks.loc[name]
        assert row["peak_bytes"] == prof.peak_bytes
        assert row["peak_increase_bytes"] == prof.peak_increase_bytes
        assert row["ops"] == len(prof.ops)
        at_peak = prof.at_peak.groupby("category")["nbytes"].sum()
        told = ranks.categories.loc[name]
        assert told[told > 0].to_dict() == at_peak.to_dict()
        peaks = ranks.steps[ranks.steps["process"] == name]["peak_bytes"]
        assert len(peaks) == 3
        assert peaks.max() == prof.peak_bytes


def test_what_differs_is_told_with_its_place(recorded, captures):
    """The highest peak is the worst rank's; the difference is the tensors of its batch, at the line that makes them."""
    ranks = memwatch.merge(reversed(captures))
    peaks = [prof.peak_bytes for prof in recorded[1]]
    assert (ranks.worst, ranks.peak_bytes) == ("rank 1", max(peaks))
    assert ranks.worst_path == str(captures[1])
    assert ranks.imbalance_ratio == pytest.approx(max(peaks) / (sum(peaks) / 3) - 1)
    assert set(ranks.differences["category"]) <= {"activation", "temporary", "input", "workspace"}
    assert all("test_ranks_merge.py" in line for line in ranks.differences["line"])
    assert (ranks.differences["where"] == "most in rank 1").all()


def test_a_category_that_several_ranks_have_most_of_names_them_all():
    names = [f"rank {rank}" for rank in range(4)]
    categories = pd.DataFrame(
        dict.fromkeys(CATEGORIES, 0) | {"gradient": [8, 8, 8, 0], "input": [4, 4, 4, 4]}, names
    )
    members = {name: SimpleNamespace(rank=rank) for rank, name in enumerate(names)}
    job = SimpleNamespace(compared=names, categories=categories, worst="rank 3", _members=members)
    assert {each.name: each.highest_in for each in category_spreads(job)} == {
        "gradient": "ranks 0-2",
        "input": "",
    }


@pytest.mark.parametrize(("modules", "count"), [(("", "net"), 0), (("net", "net"), 0), (("head", "net"), 2)])
def test_what_is_in_all_ranks_does_not_differ_where_one_did_not_see_its_module(modules, count):
    """A gradient bucket is seen during its module's backward in one rank and after it in the other. It is in both."""
    members = {
        f"rank {rank}": Member(
            {"rank": rank}, {"sites": [["communication", module, "bucket 0", "train.py:5", 4096, 1]]}
        )
        for rank, module in enumerate(modules)
    }
    assert len(differences(members, list(members))) == count


def test_a_summary_stands_for_the_tables(captures):
    """A rank that left its summary is read by it alone: the tables may be gone, and nothing is different."""
    whole = memwatch.merge(captures)
    for capture in captures:
        add_summary(capture, summarise(memwatch.load(capture).capture))
        assert "summary" not in memwatch.load(capture).meta
        with sqlite3.connect(capture) as database:
            database.execute("DELETE FROM chunks")
        database.close()
    brief = memwatch.merge(captures)
    for table in ("ranks", "steps", "categories", "sites", "differences"):
        assert getattr(brief, table).equals(getattr(whole, table))


def test_a_rank_that_is_missing_killed_or_cut_is_told(captures):
    """A merge goes on with the others, and names the rank without a file, the unfinished one and the damaged one."""
    assert kinds(memwatch.merge(captures[:1])) == ["missing"]
    change_meta(captures[0], complete=False)
    captures[1].write_bytes(captures[1].read_bytes()[:3000])
    ranks = memwatch.merge(captures)
    assert sorted(kinds(ranks)) == ["missing", "unfinished", "unreadable"]
    assert ranks.compared == ["rank 0", "rank 2"]
    assert len(ranks.ranks) == 3
    told = dict(ranks.notes)
    assert told["unfinished"].startswith("rank 0 ")
    assert told["missing"].startswith("Rank 1 ")


def test_other_versions_and_clocks_are_told(captures):
    """A capture of another format brings its summary; hosts whose clocks differ are found by the ends of steps."""
    summaries = [summarise(memwatch.load(capture).capture) for capture in captures]
    ends_ns = summaries[0]["steps"]["end_ns"]
    for capture, summary, later_s in zip(captures, summaries, (0, 0, 7), strict=True):
        steps = {**summary["steps"], "end_ns": [ns + later_s * 10**9 for ns in ends_ns]}
        add_summary(capture, {**summary, "steps": steps})
    with sqlite3.connect(captures[0]) as database:
        database.execute("PRAGMA user_version = 2")
    database.close()
    change_meta(captures[2], host="other", torch="2.12.0")
    ranks = memwatch.merge(captures)
    assert kinds(ranks) == ["version", "version", "clock"]
    assert ranks.compared == ["rank 0", "rank 1", "rank 2"]
    assert "other is 7" in ranks.notes[-1][1]
    change_meta(captures[0], summary=None)
    assert memwatch.merge(captures).compared == ["rank 1", "rank 2"]


def test_a_capture_of_another_device_is_not_compared(captures):
    """No figure compares devices: the kind that most ranks used counts."""
    head_of_first = summarise(memwatch.load(captures[0]).capture)
    add_summary(captures[0], {**head_of_first, "device": "cuda:0"})
    ranks = memwatch.merge(captures)
    assert kinds(ranks) == ["device"]
    assert ranks.compared == ["rank 1", "rank 2"]


def test_two_captures_of_one_rank_are_told_apart(captures, tmp_path):
    """A restarted rank has two rows; a file that is named twice has one."""
    again = shutil.copy(captures[0], tmp_path / "again.memwatch")
    change_meta(again, pid=1)
    ranks = memwatch.merge([*captures, captures[0], again])
    assert kinds(ranks) == ["twice"]
    assert len(ranks.ranks) == 4


def test_the_ranks_of_the_last_run_of_a_job_are_compared(captures, tmp_path):
    """Files from before torchrun's restart have their row. The ranks of the last run are compared."""
    again = [Path(shutil.copy(path, tmp_path / f"again.{path.name}")) for path in captures]
    for path in again:
        change_meta(path, restart=1)
    ranks = memwatch.merge([*captures, *again])
    assert kinds(ranks) == ["restart"]
    assert dict(ranks.notes)["restart"].endswith("of the last run: rank 0, rank 1 and rank 2.")
    assert ranks.compared == [f"rank {rank} (restart 1)" for rank in range(3)]
    assert sorted(ranks.ranks.index) == sorted(["rank 0", "rank 1", "rank 2", *ranks.compared])
    assert ranks.worst in ranks.compared
    assert ranks.differences.equals(memwatch.merge(again).differences)


def test_captures_of_jobs_of_different_sizes_are_told(captures):
    """One merge has files of two runs. The number of ranks in each job separates them."""
    change_meta(captures[2], world_size=8)
    told = dict(memwatch.merge(captures).notes)
    assert "different sizes: 3 ranks (rank 0 and rank 1) and 8 ranks (rank 2)" in told["job"]


def test_what_a_rank_started_is_told_with_its_rank(captures):
    """A worker without a rank of its own is named after the rank that is its parent, and is not compared."""
    pid, host = (memwatch.load(captures[0]).meta[name] for name in ("pid", "host"))
    change_meta(captures[1], pid=4243, parent_pid=pid, rank=None)
    for other, number in ((captures[0], pid), (captures[2], pid + 1)):
        change_meta(other, pid=number, host=host, world_size=2)
    change_meta(captures[2], rank=1)
    ranks = memwatch.merge(captures)
    assert list(ranks.ranks.index) == ["rank 0", "rank 1", "process 4243 of rank 0"]
    assert ranks.compared == ["rank 0", "rank 1"]
    assert ranks.notes == []


def test_a_fake_process_group_is_no_job_of_many(captures):
    """No simulated rank is missing."""
    change_meta(captures[0], process_group="fake")
    assert kinds(memwatch.merge(captures[:1])) == ["missing"]
    assert "did not exist" in memwatch.merge(captures[:1]).notes[0][1]


@pytest.mark.parametrize("source", [True, False])
def test_the_page_holds_the_figures_and_leads_to_the_worst_rank(captures, tmp_path, source):
    """`merge -o` writes the page, and the worst rank's page beside it. It has paths only if it has sources."""
    page = tmp_path / "ranks.html"
    words = [] if source else ["--no-source"]
    assert main(["merge", *words, "-o", str(page), *map(str, captures)]) == 0
    ranks, text = memwatch.merge(captures), page.read_text()
    assert f">Rank 1 has the highest peak, {format_bytes(ranks.peak_bytes)}: " in text
    assert "Lower the peak of rank 1 first" in text
    assert 'href="ranks.rank1.html"' in text
    assert (tmp_path / "ranks.rank1.html").read_text().startswith("<!")
    assert ("test_ranks_merge.py" in text) == source
    assert json_for_script(ranks.worst)[1:-1] in text


def work(rows, *, is_kept):
    """Read a batch, then make something larger. If `is_kept`, the batch stays alive for nothing."""
    batch = torch.ones(rows, 1000)
    total = batch.sum()
    if not is_kept:
        del batch
    return torch.ones(3 * rows, 1000).mul(2).sum() + total


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("source", [True, False])
def test_a_merge_shows_the_findings_of_the_worst_rank(tmp_path, monkeypatch, capsys, is_kept, source):
    """Text and page show the changes for the rank with the highest peak, if there are any."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    paths = [str(tmp_path / f"run.rank{rank}.memwatch") for rank in range(2)]
    for rank, path in enumerate(paths):
        monkeypatch.setenv("RANK", str(rank))
        with memwatch.profile(path):
            work(100 + 100 * rank, is_kept=is_kept)
    words = [] if source else ["--no-source"]
    assert main(["merge", *words, "-o", str(tmp_path / "ranks.html"), *paths]) == 0
    said, page = capsys.readouterr().out, unescape((tmp_path / "ranks.html").read_text())
    findings = memwatch.load(paths[1]).findings
    assert len(findings) == is_kept
    assert ("Findings in rank 1" in said) is is_kept
    assert ("drag: `batch`, local variable of `work`" in said) is is_kept
    assert ('id="findings"' in page) is is_kept
    assert ("Findings in rank 1" in page) is is_kept
    assert ("Its first finding would lower it to" in page) is is_kept
    assert ("`del` it after its last use" in page) is is_kept
    assert ("test_ranks_merge.py" in page) is source


def test_the_summary_fits_the_terminal(captures, capsys, monkeypatch):
    """The peak is in the first line; no line is longer than the terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["merge", *map(str, captures)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert format_bytes(memwatch.merge(captures).peak_bytes) in lines[0]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("words", [["nowhere.memwatch"], [__file__]])
def test_what_is_no_capture_is_refused(words, capsys):
    """A merge of nothing is one sentence."""
    assert main(["merge", *words]) == 1
    assert capsys.readouterr().err.startswith("memwatch: error: no capture can be read")


def test_gathering_without_other_ranks_gives_this_process(recorded):
    """`gather()` in a plain program is a reading of one process."""
    ranks = recorded[1][0].gather()
    assert ranks.peak_bytes == recorded[1][0].peak_bytes
    assert len(ranks.ranks) == 1
