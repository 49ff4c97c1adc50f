"""While memory grows with each iteration, the views say so first: other changes, and their code, come after that."""

from __future__ import annotations

import collections
import json
import os
import re
from types import SimpleNamespace

import pandas as pd
import pytest
import report_readings
import torch
from forked import MEMWATCH, run_forked
from torch import nn

import memwatch
from memwatch.analysis.findings.finding import Finding
from memwatch.cli import main
from memwatch.kinds.findings import FindingKind
from memwatch.report import html
from memwatch.report.console import to_text
from memwatch.report.facts import finding_categories, listed_ways, shown_ways, small_bound
from memwatch.report.page.model import page_model
from memwatch.report.terminal import finding_parts
from memwatch.sizes import format_bytes

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
def recorded(request, _fork_server, tmp_path_factory):
    """Return whether memory grows, and the capture of a training."""
    folder, outputs = (tmp_path_factory.mktemp(name) for name in ("growth", "outputs"))
    (folder / "train.py").write_text(TRAINING.format(line=request.param))
    words = ("run", "-o", "train.memwatch", "train.py")
    run_forked(_fork_server, MEMWATCH, *words, folder=folder, outputs=outputs).check_returncode()
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
    lines = TRAINING.splitlines()
    line, added = lines.index("log = Log()") + 1, lines.index("    {line}") + 1
    assert (f"`log.losses` of module `__main__` (`log` is set at train.py:{line})" in told) == grows
    assert (f"of the peak), added at train.py:{added}. If" in told) == grows
    assert (f"per iteration, added at train.py:{added})" in told) == grows
    assert ("added at" in told) == grows


def test_the_page_opens_the_code_of_a_change_only_where_nothing_grows(recorded, tmp_path):
    grows, capture = recorded
    reading = memwatch.load(capture)
    assert len(reading.ways)
    assert any(finding.growth_bytes for finding in reading.findings) == grows
    reading.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count('<details class="way"') == len(reading.ways)
    assert bool(re.search(r'<details class="way"[^>]* open>', page)) == (not grows)


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


class _Log:
    """What a training keeps of each step, in several ways."""

    def __init__(self):
        self.outputs, self.losses = [], []
        self.window, self.mean = collections.deque(maxlen=4), torch.zeros(16, 128)

    def keep_outputs(self, out, loss):
        self.outputs.append(out.detach()[:16].clone())

    def keep_window(self, out, loss):
        self.window.append(out.detach()[:16].clone())

    def keep_mean(self, out, loss):
        self.mean = 0.9 * self.mean + 0.1 * out.detach()[:16]

    def keep_number(self, out, loss):
        self.losses.append(loss.item())

    def keep_scalars(self, out, loss):
        self.losses.append(loss.detach())


def _profile_of_a_log(keep, passes=20):
    log = _Log()
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(4))
    )
    optimizer = torch.optim.AdamW(model.parameters())
    with memwatch.profile() as prof:
        for _ in range(passes):
            optimizer.zero_grad()
            out = model(torch.randn(128, 128))
            loss = out.square().mean()
            loss.backward()
            optimizer.step()
            keep(log, out, loss)
    return prof


@pytest.mark.words
def test_the_summary_mentions_memory_that_grows_a_little():
    prof = _profile_of_a_log(_Log.keep_outputs)
    (small,) = (finding for finding in prof.small_findings if finding.growth_bytes)
    assert small.growth_bytes == 16 * 128 * 4
    assert not any(finding.growth_bytes for finding in prof.findings)
    told = " ".join(prof.summary().split())
    assert "Memory also grows a little: by 8.00 KiB with each iteration, held by" in told
    assert "Memory grows by" not in told
    assert "`log.outputs`" in told


@pytest.mark.words
def test_the_page_mentions_memory_that_grows_a_little_and_lists_small_findings(tmp_path):
    """The chart shows the growth, so a reader looks for a sentence about it."""
    prof = _profile_of_a_log(_Log.keep_outputs)
    model = page_model(prof)
    assert "by 8.00 KiB with each iteration" in model["small_growth"]
    assert [each["nbytes"] for each in model["small_findings"]] == [
        each.nbytes for each in prof.small_findings
    ]
    page = html(prof, tmp_path / "log.html").read_text()
    assert "Memory also grows a little: by 8.00 KiB" in page.partition("<script")[0]
    assert page_model(_profile_of_a_log(_Log.keep_number))["small_growth"] == ""


def _reading_of_a_finding(**nbytes):
    """Return a finding about storages of some categories, and a reading with these storages at its peak."""
    at_peak = pd.DataFrame({"nbytes": nbytes.values(), "category": nbytes.keys()})
    texts = {"holder": "global `history`", "site": "", "advice": "keep only the newest", "path": ""}
    peaks = {"predicted_peak_bytes": 0, "together_peak_bytes": 0}
    finding = Finding(
        FindingKind.GROWTH, sum(nbytes.values()), **texts, **peaks, storages=tuple(range(len(at_peak)))
    )
    return finding, SimpleNamespace(at_peak=at_peak)


@pytest.mark.words
def test_a_finding_of_several_categories_says_how_the_tables_count_it():
    """The newest result in a list is still an activation. A reader compares a finding's bytes with a category's."""
    finding, reading = _reading_of_a_finding(activation=2**19, held=2**23)
    told = " ".join(to_text(*finding_parts([finding], 1, reading)).split())
    assert told.startswith("8.50 MiB")
    assert "the table of categories counts its bytes as held (8.00 MiB) and activation (512.00 KiB)" in told


def test_a_finding_that_reads_as_one_category_says_nothing_of_categories():
    """Neither do a few bytes of another category, which change no printed digit."""
    for nbytes in ({"held": 2**23}, {"temporary": 2**21, "workspace": 12}):
        finding, reading = _reading_of_a_finding(**nbytes)
        assert finding_categories(finding, reading) == {}


@pytest.mark.parametrize(
    "keep",
    [_Log.keep_window, _Log.keep_mean, _Log.keep_number, _Log.keep_scalars],
    ids=lambda keep: keep.__name__,
)
def test_a_log_that_does_not_grow_is_not_mentioned(keep):
    """Kept scalars do grow, but by less than a small finding has."""
    prof = _profile_of_a_log(keep)
    assert not any(finding.growth_bytes for finding in [*prof.findings, *prof.small_findings])
    assert "grows" not in prof.summary()


@pytest.mark.words
def test_the_summary_counts_small_findings():
    """Gradients that are alive at the peak are less than 5 % of it."""
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with memwatch.profile() as prof:
        for _ in range(3):
            loss = model(torch.randn(512, 64)).square().mean()
            torch.randn(2048, 64).square()  # at the peak, the gradients of the last step are alive
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert "gradient" in [finding.kind for finding in prof.small_findings]
    assert "gradient" not in [finding.kind for finding in prof.findings]
    counted = f"Findings below 5 % of the peak increase: {len(prof.small_findings)} (in Python: prof.small_findings,"
    assert counted in " ".join(prof.summary().split())
    assert page_model(prof)["small_findings_title"].endswith("of the peak increase")


@pytest.mark.words
@pytest.mark.parametrize(("baseline", "whole"), [([], "the peak"), ([{"nbytes": 8}], "the peak increase")])
def test_the_bound_of_small_findings_is_a_share_of_a_figure_that_the_page_shows(baseline, whole):
    """If nothing was alive before the block, the peak increase is the peak, and the page does not show it."""
    reading = report_readings.from_lives([{"born": 1, "nbytes": 64}], baseline)
    assert small_bound(reading) == f"5 % of {whole}"


@pytest.mark.words
def test_all_views_have_one_order_of_changes_and_the_code_of_the_first(recorded, capsys):
    grows, capture = recorded
    reading = memwatch.load(capture)
    listed = listed_ways(reading)
    assert main(["summary", "--json", str(capture)]) == 0
    ranked = [way for way in json.loads(capsys.readouterr().out)["ways"] if way["rank"]]
    assert [way["way"] for way in sorted(ranked, key=lambda way: way["rank"])] == list(listed["way"])
    if not grows:
        told = reading.summary()
        assert " other changes: memwatch report shows the code of each (in Python: prof.ways)\n" in told
        lines = listed["lines"][shown_ways(listed, 2)[1]].splitlines()
        assert all(f"    {line}".rstrip() in told for line in lines)


@pytest.mark.words
def test_the_headline_says_that_the_first_change_includes_the_fix_of_the_finding():
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(3)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with memwatch.profile() as prof:
        for _ in range(3):
            model(torch.randn(8, 256)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert prof.findings[0].kind == "fused"
    assert listed_ways(prof)["kind"][0] == "fused + step_in_backward"
    told = " ".join(prof.summary().split())
    peaks = prof.findings[0].predicted_peak_bytes, int(listed_ways(prof)["peak_bytes"][0])
    alone, both = map(format_bytes, peaks)
    assert (
        f"finding below, the peak falls to {alone}. If you make the first change below, which includes"
        in told
    )
    assert f"which includes that fix, it falls to {both}." in told


@pytest.mark.words
@pytest.mark.parametrize("second", [256, 16])
def test_the_headline_names_a_second_line_that_made_nearly_as_much(second):
    with memwatch.profile() as prof:
        one = torch.ones(256, 1024)
        other = torch.ones(second, 1020)
    told = " ".join(prof.summary().split())
    assert ("made more of the peak than any other line" in told) == (second == 256)
    assert (" % of the peak, more than any other line" in told) == (second != 256)
    assert one.sum() > other.sum()


STEPS = """
import torch
from torch import nn

model = nn.Linear(512, 512)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(4, 512)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.words
def test_the_summary_shows_the_line_to_change_as_the_page_does(shell_memwatch, tmp_path, monkeypatch):
    (tmp_path / "steps.py").write_text(STEPS)
    shell_memwatch("run", "-o", "steps.memwatch", "steps.py").check_returncode()
    monkeypatch.chdir(tmp_path)
    reading = memwatch.load("steps.memwatch")
    assert reading.findings[0].kind == "fused"
    new = "change steps.py:6 to: optimizer = torch.optim.AdamW(model.parameters(), fused=True)"
    told = " ".join(reading.summary().split())
    assert new in told
    assert "the optimizer's step, at steps.py:9" in told
    with (tmp_path / "steps.py").open("a") as file:
        file.write("# later")  # the lines may have moved
    assert new not in " ".join(memwatch.load("steps.memwatch").summary().split())


FILLED = """
import os
import torch
import memwatch

class Log:
    def __init__(self):
        self.outputs, self.losses = [], []

    def add(self, value):
        self.outputs.append(value)  # of an attribute

    def add_loss(self, value):
        self.losses.append(value)  # of one line

def put(values, value):
    values.append(value)

table = {}
log = Log()
others = []
others.append(None)  # before the loop

def of_list(at, value, kept):
    kept.append(value)  # of a list

def of_dictionary(at, value, kept):
    table.setdefault("loss", []).append(value)  # of a dictionary

def of_attribute(at, value, kept):
    log.add(value)

def of_two_lines(at, value, kept):
    if at % 2:
        log.losses.append(value)  # of the other line
    else:
        log.add_loss(value)

def under_another_name(at, value, kept):
    put(kept, value)

def under_another_name_too(at, value, kept):
    put(others, value)

def one_value(at, value, kept):
    kept[:] = [value]

def of_loop():
    kept = []
    for at in range(8):
        value = torch.ones(256, 1024) * at
        kept.append(value)  # of a loop
    return kept

def passes(fill):
    kept = []
    kept.append(None)  # before the loop
    for at in range(8):
        fill(at, torch.ones(256, 1024) * at, kept)
    return kept

lines = open(__file__).read().splitlines()
known = of_dictionary, of_attribute, of_two_lines
for fill in (of_list, *known, under_another_name, under_another_name_too, one_value, None):
    table.clear()
    log.__init__()
    with memwatch.profile() as prof:
        kept = of_loop() if fill is None else passes(fill)
    found = [finding for finding in prof.findings if finding.growth_bytes]
    places = [place.rpartition(":") for finding in found for place in finding.added_at]
    assert all(place[0] == __file__ for place in places)
    name = "of_loop" if fill is None else fill.__name__
    print(name, len(found), *(lines[int(place[2]) - 1].partition("# ")[2] for place in places), sep=",")
prof.save("filled.memwatch")
"""


def test_a_finding_names_the_lines_that_add_to_the_container_where_they_are_known(fresh_python, tmp_path):
    """No line is known where the container has another name, or after the file has changed."""
    file = tmp_path / "filled.py"
    file.write_text(FILLED)
    done = fresh_python("import filled")
    assert done.stdout.splitlines() == [
        "of_list,1",
        "of_dictionary,1,of a dictionary",
        "of_attribute,1,of an attribute",
        "of_two_lines,1,of one line,of the other line",
        "under_another_name,1",
        "under_another_name_too,1",
        "one_value,0",
        "of_loop,1,of a loop",
    ]
    prof = memwatch.load(tmp_path / "filled.memwatch")
    later_s = prof.meta["started_s"] + 10
    os.utime(file, (later_s, later_s))
    assert not any(finding.added_at for finding in prof.findings)
