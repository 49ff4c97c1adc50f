"""Summary, tree and statistics as text."""

from __future__ import annotations

import gc
import io
import json
import re
import sys
from collections import Counter

import pandas as pd
import pytest
import report_readings
import torch
from torch.utils.checkpoint import checkpoint

import memwatch
from memwatch.analysis.facts.reserved import ReservedBytes
from memwatch.analysis.findings.finding import Finding
from memwatch.fit.result import ways_text
from memwatch.kinds.findings import FindingKind
from memwatch.report import facts, terminal
from memwatch.report.console import middle
from memwatch.report.facts import evidence_text, headline
from memwatch.report.stats import format_stats, stats
from memwatch.report.terminal import summary
from memwatch.report.tree import peak_tree, tree
from memwatch.sizes import format_bytes, parse_bytes
from memwatch.words.holders import short_inferred
from memwatch.words.storages import short_op
from memwatch.words.ways import heading_in_terminal

OF_ANOTHER_TEST = torch.zeros(1 << 20)
"""4 MiB, as a file of other tests may keep."""


def sizes(text: str) -> list[int]:
    """Find the leading sizes of lines."""
    found = re.findall(r"^\W*(\d+\.?\d* (?:B|KiB|MiB|GiB))", text, re.MULTILINE)
    return [parse_bytes(size) for size in found]


def test_the_recording_of_these_tests_has_only_its_own_memory(training):
    """What other tests keep is neither at its start nor at its peak."""
    parameters = training.at_peak["nbytes"][training.at_peak["category"] == "parameter"].sum()
    assert training.baseline_bytes == parameters < OF_ANOTHER_TEST.nbytes


def test_the_total_comes_first(training):
    """The first line is peak = entry + increase; the second says where."""
    first, second = summary(training, width=120, color=False).splitlines()[:2]
    peak, base, grown = map(
        format_bytes, (training.peak_bytes, training.baseline_bytes, training.peak_increase_bytes)
    )
    assert first == f"Peak {peak} = {base} at the start + {grown} increase (cpu)"
    event = training.peak_event
    op = training.timeline["op"].iloc[event]
    assert second.startswith(f"Op {op}, {short_op(training.ops['name'][op])} ")
    assert training.ops["line"][op].rpartition("/")[2] in second


@pytest.mark.parametrize(
    ("freed", "made", "line"),
    [
        (0, [4, 2], "Peak 10.00 MiB = 4.00 MiB at the start + 6.00 MiB increase (cpu)"),
        (1, [4, 2], "Peak 8.00 MiB = 4.00 MiB from before the block + 4.00 MiB made in it (cpu)"),
        (1, [2, 4], "Peak 6.00 MiB = 4.00 MiB from before the block + 2.00 MiB made in it (cpu)"),
    ],
    ids=["kept", "freed after the first", "lower than entry and increase"],
)
def test_the_parts_of_the_peak_add_up_at_its_instant(freed, made, line):
    """Memory from entry that is freed later does not count at a later instant."""
    before = [torch.ones(2**20)]
    kept = []
    with memwatch.profile() as prof:
        for number, mebibytes in enumerate(made):
            kept.append(torch.ones(mebibytes * 2**18))
            if freed and not number:
                before.clear()
    text = summary(prof, width=120, color=False)
    assert text.splitlines()[0] == line
    assert ("4.00 MiB were alive at the start; the block itself added at most 6.00 MiB" in text) == bool(
        freed
    )


def test_every_category_of_the_peak_is_listed(training):
    """Each category stands with its bytes, largest first."""
    text = summary(training, width=120, color=False)
    expected = training.at_peak.groupby("category")["nbytes"].sum().sort_values(ascending=False)
    rows = [line for line in text.splitlines() if line.split("  ")[0] in expected.index]
    assert sorted(row.split("  ")[0] for row in rows) == sorted(expected.index)
    assert all(format_bytes(nbytes) in row for nbytes, row in zip(expected, rows, strict=True))


def test_holders_and_idle_bytes_are_said(training):
    """Each kind of holder has its bytes at the peak. Bytes in use are separated from idle bytes."""
    text = summary(training, width=120, color=False, rows=20)
    kinds = training.at_peak[training.at_peak["holder_kind"] != ""].groupby("holder_kind")["nbytes"].sum()
    assert len(kinds) > 2
    for kind, nbytes in kinds.items():
        assert re.search(rf"{re.escape(format_bytes(nbytes))} .* {re.escape(kind)} ", text)
    in_use = training.at_peak["nbytes"][training.at_peak["phase"] == "use"].sum()
    assert f"In use at the peak: {100 * in_use / training.peak_bytes:.1f} %" in text


def test_the_rest_of_a_table_is_one_row(training):
    """Rows that are left out are summed, so the column adds up to the peak."""
    text = summary(training, width=120, color=False, rows=3)
    rest = training.at_peak["nbytes"].iloc[3:]
    assert re.search(rf"{re.escape(format_bytes(rest.sum()))} .*{len(rest):,} more", text)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_lines_keep_to_the_width(training, width):
    """No line is wider than asked for; from 60 on names are cut and no figure is."""
    text = summary(training, width=width, color=False) + tree(training, width=width, color=False)
    code = {f"    {line}" for lines in training.ways["lines"] for line in lines.splitlines()}  # never wrapped
    assert max(len(line) for line in text.splitlines() if line not in code) <= width
    if width >= 60:
        assert not re.search(r"^ *[\d.]+ ?[KMG]?i?…|[KMG]?i?B +[\d.]*…", text, re.MULTILINE)


@pytest.mark.parametrize("findings", [0, 2, 40])
def test_the_summary_fits_a_screen_and_ends_with_the_next_call(training, monkeypatch, findings):
    """It has at most 50 lines of 80 characters, and a few more with findings and code. It ends with the next call."""
    monkeypatch.setattr(type(training), "findings", training.findings[:1] * findings)
    lines = summary(training, width=80, color=False).splitlines()
    assert len(lines) <= (64 if findings else 50)
    assert 'prof.report("' in lines[-1]
    assert "memwatch plan" in summary(training, color=False, following="memwatch plan x").splitlines()[-1]


def test_a_summary_computes_its_figures_once_however_often_it_is_laid_out(training, monkeypatch):
    """Each takes time with every storage at the peak. Nor does gc pass over the program's objects meanwhile."""
    calls: Counter[str] = Counter()
    passes: list[str] = []

    def counted(name):
        function = getattr(terminal, name)

        def call(*arguments, **options):
            calls[name] += 1
            return function(*arguments, **options)

        return call

    figures = ("bytes_by_line", "headline", "listed_ways", "only_for_backward", "repeated_layers", "to_text")
    for name in figures:
        monkeypatch.setattr(terminal, name, counted(name))

    def watch(phase, _):
        passes.append(phase)

    gc.callbacks.append(watch)
    try:
        training.summary(width=80, color=False)
    finally:
        gc.callbacks.remove(watch)
    assert calls.pop("to_text") > 1, "the summary was laid out once"
    assert set(calls.values()) == {1}
    assert not passes


def test_a_summary_names_the_tables_that_it_leaves_out(training):
    """With a number of rows it has all of them. A command that shows them is whole, however narrow the line."""
    command = f"memwatch summary -n 8 {'a' * 80}.memwatch"
    text = summary(training, width=60, color=False, show_all=command)
    headings = {
        "storages": "Largest storages",
        "modules": "Modules at",
        "lines": "Lines that",
        "holders": "Who holds",
    }
    (told,) = re.findall(r"More tables: (.*?)\. To see them:", " ".join(text.split()))
    assert {name for name, heading in headings.items() if heading not in text} == set(headings) & set(
        re.findall(r"\w+", told)
    )
    assert f"    {command}\n" in text
    whole = summary(training, width=60, color=False, rows=8)
    assert "More tables" not in whole
    assert all(heading in whole for heading in headings.values())


def test_a_summary_explains_the_basis_of_each_change(training):
    text = summary(training, width=200, color=False)
    shown = set(re.findall(r"; (simulated|estimated)\b", text))
    assert shown
    assert {word.lower() for word in re.findall("(Simulated|Estimated): ", text)} == shown


@pytest.mark.words
@pytest.mark.parametrize(
    ("peaks_bytes", "is_beside_findings", "order"),
    [
        ([3], False, ""),
        ([3], True, ", each change alone"),
        ([3, 5], False, ", each change alone, lowest peak first"),
        (
            [5, 3],
            False,
            ", each change alone",
        ),  # one without a decision comes first, as a sentence below says
    ],
)
def test_a_heading_of_changes_says_their_order(peaks_bytes, is_beside_findings, order):
    assert heading_in_terminal("X", peaks_bytes, is_beside_findings=is_beside_findings) == f"X{order}"


def test_a_name_that_is_too_long_keeps_what_it_is_and_where_it_was_made():
    """The op at the front and the line at the end outlive a cut; a name that fits is whole."""
    told = "addmm in `transformer.blocks.11.attention.out` at train.py:24"
    assert middle(told, 24).plain == "addmm in `tr…train.py:24"
    assert middle(told, 100).plain == told


def test_columns_and_no_color_are_honoured(training, monkeypatch):
    """COLUMNS sets the width; a terminal gets colour, unless NO_COLOR is set."""

    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "64")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    lines_of_code = training.ways["lines"].str.cat(sep="\n").splitlines()
    code = {line.strip() for line in lines_of_code}  # it is never wrapped, so that it can be pasted
    assert max(len(line) for line in summary(training).splitlines() if line.strip() not in code) <= 64
    assert "\x1b[" not in summary(training)
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert "\x1b[" in summary(training)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in summary(training)


def test_a_summary_needs_no_current_folder(training, tmp_path, monkeypatch):
    """A test may delete its own folder before the block ends."""
    folder = tmp_path / "deleted"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert training.summary().startswith("Peak ")


def test_without_standard_output_there_is_no_colour(training, monkeypatch):
    """A service may have no console."""
    monkeypatch.setattr(sys, "stdout", None)
    assert training.summary().startswith("Peak ")


def test_an_ascii_stream_gets_ascii(training, monkeypatch):
    """Where the stream cannot encode bars and ellipses, ASCII stands in for them, in the same columns."""
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    plain = summary(training, width=80, color=False) + tree(training, width=80, color=False)
    monkeypatch.undo()
    assert plain.isascii()
    assert "####" in plain
    drawn = summary(training, width=80, color=False) + tree(training, width=80, color=False)
    assert [len(line) for line in plain.splitlines()] == [len(line) for line in drawn.splitlines()]


def test_hostile_names_steer_no_terminal():
    """No control character of a name reaches the terminal, and long names are cut."""
    reading = report_readings.hostile()
    for text in (summary(reading), tree(reading), format_stats(stats(reading))):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]", text)
        assert len(text) < 20_000


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [
        ({"seen": 8}, "100 % seen or read from torch's records"),
        ({"seen": 6, "inferred": 2}, "75 % seen or read from torch's records, 25 % inferred"),
        ({"inferred": 1, "none": 3}, "25 % inferred, 75 % not known"),
    ],
)
def test_holders_that_are_known_in_no_other_way_have_no_share_of_zero(nbytes, said):
    assert evidence_text(nbytes) == said


def test_nothing_at_all_is_said_so():
    """A block without tensors gives zeros, not an error."""
    reading = report_readings.empty()
    assert summary(reading).startswith("Peak 0 B (cpu)")
    assert "0 B" in tree(reading)
    told = format_stats(stats(reading), color=False).rstrip()
    assert "allocations" in told
    assert told.splitlines()[-1] == "No allocation was recorded."  # and no tables without rows


def test_findings_and_notes_end_the_summary(training):
    """A finding shows its bytes, holder, line and advice; a note its sentence."""
    reading = report_readings.from_lives([{"nbytes": 1024, "born": 1}])
    holder, site = "`xs`, argument of `f`", "train.py:41"
    reading.findings = [Finding(FindingKind.DRAG, 2048, holder, site, "Drop it.", "a\nb", 0, 0, (0,))]
    reading.notes = [("compiled", "Two frames were compiled.")]
    text = summary(reading, width=100, color=False, following="")
    assert "2.00 KiB  drag: `xs`, argument of `f` at train.py:41" in text
    assert "Drop it." in text
    assert text.endswith("- compiled: Two frames were compiled.\n")


def test_the_tree_adds_up(training):
    """At each level of the tree the children are the parent, in data and in text."""

    def check(node) -> None:
        assert not node.children or sum(child.nbytes for child in node.children) == node.nbytes
        assert [child.nbytes for child in node.children] == sorted(
            (c.nbytes for c in node.children), reverse=True
        )
        for child in node.children:
            check(child)

    root = peak_tree(training.at_peak)
    assert root.nbytes == training.peak_bytes
    check(root)
    assert sizes(tree(training, width=120, color=False))[0] == parse_bytes(format_bytes(training.peak_bytes))


def test_statistics_are_those_of_the_tables(training):
    """The dict is plain JSON; its counts are the tables'."""
    figures = stats(training)
    assert json.loads(json.dumps(figures)) == figures
    born = training.storages[training.storages["counted"] & (training.storages["birth_event"] >= 0)]
    assert figures["allocations"] == len(born) == sum(count for _, _, count, _ in figures["histogram"])
    assert (
        figures["allocated_bytes"]
        == born["nbytes"].sum()
        == sum(nbytes for *_, nbytes in figures["histogram"])
    )
    for low, high, count, nbytes in figures["histogram"]:
        assert ((born["nbytes"] >= low) & (born["nbytes"] < high)).sum() == count
        assert born["nbytes"][(born["nbytes"] >= low) & (born["nbytes"] < high)].sum() == nbytes
    assert sum(figures["category_bytes"].values()) == figures["peak_bytes"]
    top = figures["top_ops"][0]
    assert born["nbytes"][born["op_name"] == top["name"]].sum() == top["nbytes"]
    assert len(figures["top_lines"]) <= 5
    assert format_bytes(figures["peak_bytes"]) in format_stats(figures, width=100, color=False)


def test_what_an_allocator_keeps_stands_beside_what_is_live():
    """The summary has the reserved bytes at the peak, next to the live bytes and the largest free piece.

    The host has none.
    """
    reading = report_readings.from_lives([{"nbytes": 2048, "born": 0}])
    assert "Reserved" not in summary(reading, color=False)
    reading.reserved = ReservedBytes(8192, 9216, 4096, 2048, 5120)
    assert (
        "Reserved by its allocator at the peak: 8.00 KiB, of which 2.00 KiB live and 6.00 KiB free (the largest piece "
        "has 5.00 KiB); at most 9.00 KiB" in summary(reading, width=160, color=False).splitlines()
    )
    assert stats(reading)["peak_reserved_bytes"] == 8192


def test_bytes_of_which_no_use_is_known_are_not_called_idle_nor_used():
    """If the step of the peak was not recorded, some bytes have no phase, and the summary counts them."""
    kept = []
    with memwatch.profile(schedule=memwatch.schedule(skip_first=1, wait=1, active=1)) as prof:
        for _ in range(3):
            kept.append(torch.ones(1000))
            prof.step()
        kept.append(torch.ones(9000))
    unknown = prof.at_peak["nbytes"][prof.at_peak["phase"] == ""].sum()
    assert unknown
    assert f"use not known: {format_bytes(unknown)}" in " ".join(summary(prof, width=200).split())


def test_ways_that_could_not_be_measured_are_told_once_below_the_table():
    """The column of the table is narrow; two ways that failed for one reason have one sentence."""
    row = {
        "peak_bytes": -1,
        "step_time_ns": -1,
        "extra_ratio": float("nan"),
        "changes": "",
        "bitwise": "unknown",
    }
    row |= {"under_limit": False, "kept": False, "failure": "too few steps"}
    text = ways_text(pd.DataFrame([row | {"way": "one"}, row | {"way": "two"}]), 1 << 20, width=80)
    assert text.count("too few steps") == 1
    assert "one, two not measured: too few steps" in text


def _two_instants(*, keeps):
    """Return a recording in which two kept tensors are needed for a lower peak: each alone leaves the other one's."""
    with memwatch.profile() as prof:
        first = torch.ones(1000, 1000)
        first.sum()
        if not keeps:
            del first
        torch.ones(2000, 1000).sum()
        first = None
        second = torch.ones(1000, 1000)
        second.sum()
        if not keeps:
            del second
        torch.ones(2000, 1000).sum()
    return prof


def test_the_headline_promises_no_lower_peak_without_a_finding_that_leaves_it_as_it_is():
    kept, dropped = _two_instants(keeps=True), _two_instants(keeps=False)
    assert [each.predicted_peak_bytes for each in kept.findings] == [kept.peak_bytes] * 2
    assert (
        f"If you fix the findings below, the peak falls to {format_bytes(dropped.peak_bytes)}."
        in headline(kept)
    )
    assert "Without the" not in headline(dropped)


@pytest.mark.words
def test_a_table_says_in_one_word_that_a_holder_is_inferred():
    """The rule is in the profile's data."""
    life = {"born": 1, "nbytes": 1 << 20, "line": "train.py:1"}
    reading = report_readings.from_lives([life], holders={0: (HOLDER, "gradient", "")})
    for width in (60, 80, 200):
        (row,) = (line for line in summary(reading, width=width).splitlines() if " gradient " in line)
        assert row.rstrip().endswith(" (inferred)")
        assert "found in" not in row
    assert short_inferred("global `feats`") == ("global `feats`", "")


HOLDER = "`blocks.0.mlp.2.weight` .grad (inferred: found in this role later)"


@pytest.mark.words
@pytest.mark.parametrize(("share_ratio", "is_explained"), [(0.04, True), (0.01, False)])
def test_a_category_of_a_few_percent_is_explained(share_ratio, is_explained):
    large = {"born": 1, "nbytes": 1 << 20, "category": "parameter", "line": "train.py:1"}
    lives = [large, large | {"nbytes": int(share_ratio * (1 << 20)), "category": "held"}]
    told = summary(report_readings.from_lives(lives), width=200)
    assert "held" in told
    assert ("held: a variable keeps it from one iteration to the next" in told) == is_explained


@pytest.mark.words
@pytest.mark.parametrize("nbytes", [1 << 20, 4])
def test_nothing_is_said_of_memory_for_backward_that_hardly_takes_any(nbytes):
    with memwatch.profile() as prof:
        kept = torch.ones(1 << 20)
        scale = torch.ones(nbytes // 4, requires_grad=True)
        loss = (scale * 2).exp().sum()
        peak = torch.ones(1 << 22)
        del kept, peak
        loss.backward()
    assert ("Kept only for backward: " in summary(prof, width=200)) == (nbytes > 4)


@pytest.mark.words
@pytest.mark.parametrize("checkpoints", [False, True])
def test_where_no_change_is_known_a_forward_that_saves_much_is_said_to_need_checkpoints_by_hand(checkpoints):
    """A program without modules has no blocks that a change could name. One that checkpoints already knows how to."""
    weight = torch.randn(32, 32, requires_grad=True)

    def forward(x):
        for _ in range(12):
            x = (x @ weight).sin()
        return x

    def step(x):
        out = checkpoint(forward, x, use_reentrant=False) if checkpoints else forward(x)
        out.square().mean().backward()

    with memwatch.profile() as prof:
        for _ in range(2):
            step(torch.randn(2048, 32))
    text = " ".join(prof.summary().split())
    assert "memwatch knows no change that would lower the peak" in text
    assert ("put parts of your forward into functions" in text) is not checkpoints


@pytest.mark.words
@pytest.mark.parametrize("decision", ["", "the loss must be a mean"])
def test_the_headline_begins_with_the_peak_of_the_code_that_is_shown(monkeypatch, decision):
    """If the first change needs a decision, the code is that of a later one."""
    found = pd.DataFrame({"peak_bytes": [2**20, 3 * 2**20], "decision": [decision, ""], "kind": ["a", "b"]})
    monkeypatch.setattr(facts, "listed_ways", lambda reading: found)
    text = headline(_plain_step())
    if decision:
        assert (
            "With the change whose code is below, the peak falls to 3.00 MiB; "
            "with the first change of the list, to 1.00 MiB." in text
        )
    else:
        assert text.endswith("falls to 1.00 MiB.")
        assert "With the change whose code" not in text


def _plain_step():
    with memwatch.profile() as prof:
        x = torch.ones(2**20, requires_grad=True)
        x.exp().sum().backward()
    return prof
