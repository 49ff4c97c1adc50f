"""Recomputed memory: its holders, and the memory that other checkpoints would need."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from recompute_models import WIDTH, Block, Net, again, again_reentrant, selectively, train_plainly
from torch import nn

import memwatch
from memwatch.analysis.facts.coded import Grouped as Numbered
from memwatch.analysis.findings.avoidable import SmallerRegions
from memwatch.report.facts import recomputed


@pytest.mark.parametrize("run", [again, again_reentrant], ids=["non-reentrant", "reentrant"])
def test_a_variable_of_a_forward_that_has_returned_holds_nothing(run):
    """The checkpoint or autograd holds recomputed tensors, not the dead variables of the forward."""
    net = Net(run)
    with memwatch.profile() as prof:
        net(torch.randn(512, WIDTH, requires_grad=True)).sum().backward()
    assert prof.ops["phase"][int(prof.timeline["op"][prof.timeline["live_bytes"].idxmax()])] == "backward"
    again = prof.at_peak[prof.at_peak["category"] == "recomputed"]
    largest = again[again["nbytes"] == again["nbytes"].max()]
    assert set(largest["holder_kind"]) <= {"checkpoint", "autograd node"}
    assert set(largest["module"]) <= {
        f"blocks.{index}.{part}" for index in range(3) for part in ("up", "act")
    }
    assert not again["holder"].str.contains("local variable of `forward`").any()
    assert prof.findings == []


def test_the_input_of_a_region_is_kept_by_its_checkpoint():
    """The checkpoint's own books say so; no node's backward reads it."""
    net = Net(again)
    with memwatch.profile() as prof:
        loss = net(torch.randn(512, WIDTH, requires_grad=True)).sum()
    held = prof.at_peak[prof.at_peak["holder_kind"] == "checkpoint"]
    held = held[held["nbytes"] != torch.get_rng_state().nbytes]  # which it keeps too
    assert (held["nbytes"] == 512 * WIDTH * 4).sum() >= 2
    assert set(held["holder"]) == {
        "a checkpoint called by `net`, which runs its region again from it in backward"
    }
    assert set(held["category"]) == {"activation", "input"}
    loss.backward()


@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_what_a_compiled_function_saved_is_saved_until_its_backward_ends(intercept):
    """Its saved tensors and its line belong to the call. No line is in code that torch generated."""
    net = nn.Sequential(Block(), Block())
    compiled = torch.compile(net, backend="aot_eager")
    x = torch.randn(512, WIDTH, requires_grad=True)
    compiled(x).sum().backward()
    with memwatch.profile(intercept=intercept) as prof:
        y = compiled(x)
        y.sum().backward()
    assert set(prof.ops["phase"]) == {"forward", "backward"}
    lines = [*prof.ops["line"], *prof.at_peak["line"], *prof.saved["line"]]
    assert {line.rpartition(":")[0] for line in lines} <= {"", __file__}
    saved = prof.saved[prof.saved["at_peak"]].drop_duplicates("storage")
    sizes = prof.storages["nbytes"].loc[saved["storage"]]
    assert sizes.max() == 512 * 4 * WIDTH * 4
    assert sizes.sum() > 0.3 * prof.peak_bytes


class Grouped(nn.Module):
    """Eight blocks, checkpointed in groups of some."""

    def __init__(self, per_group, run):
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH)) for _ in range(8)]
        starts = range(0, 8, per_group)
        self.groups = nn.ModuleList(nn.Sequential(*blocks[start : start + per_group]) for start in starts)
        self.run = run

    def forward(self, x):
        for group in self.groups:
            x = self.run(group, x)
        return x


def _two_steps(net):
    x = torch.randn(2048, WIDTH, requires_grad=True)
    with memwatch.profile() as prof:
        for _ in range(2):
            net(x).sum().backward()
            net.zero_grad()
    return prof


@pytest.mark.parametrize("run", [again, again_reentrant], ids=["non-reentrant", "reentrant"])
def test_a_large_region_is_told_to_be_split(run):
    """The predicted peak equals the peak of the program with smaller regions, which has no such finding."""
    smaller = _two_steps(Grouped(1, run))
    assert smaller.findings == []
    for per_group in (8, 2):
        large = _two_steps(Grouped(per_group, run))
        (finding,) = large.findings
        assert finding.kind == "recompute"
        assert finding.site.startswith(f"{__file__}:")
        assert finding.predicted_peak_bytes == pytest.approx(smaller.peak_bytes, rel=0.02)
        assert smaller.peak_bytes < 0.9 * large.peak_bytes


def test_the_summary_says_what_keeping_it_would_take():
    """If the program keeps the tensors that backward recomputes, it needs as much as the plain program.

    Tensors that are kept anyway count too.
    """
    torch.manual_seed(0)
    x = torch.randn(512, WIDTH, requires_grad=True)

    def kept_bytes(run):
        net = Net(run)
        with memwatch.profile(holders=False) as prof:
            loss = net(x).sum()
        live = prof.live_at(len(prof.timeline) - 1)
        del loss
        made = live["origin"] != "baseline"  # tensors of other tests may die meanwhile
        return live.loc[made, "nbytes"].sum()

    with memwatch.profile() as prof:
        Net(again)(x).sum().backward()
    instead = recomputed(prof)
    assert instead.at_peak_bytes == prof.at_peak[prof.at_peak["category"] == "recomputed"]["nbytes"].sum()
    difference = kept_bytes(lambda block, x: block(x)) - kept_bytes(again)
    result = 512 * WIDTH * 4  # of a region, which forward keeps as the input of the next
    state = torch.get_rng_state().nbytes  # a checkpoint keeps it for each region
    assert instead.instead_bytes == difference + 3 * (result + state)
    assert "Computed again in backward: " in prof.summary(color=False)
    assert "Computed again" not in _plain().summary(color=False)


def _plain():
    with memwatch.profile(holders=False) as prof:
        train_plainly()
    return prof


@pytest.mark.parametrize("holders", [True, False])
def test_what_a_checkpoint_computed_again_is_its_until_backward_has_read_it(holders):
    """Afterwards torch has released them. The program holds tensors that still live, and may even use them again."""
    kept, x = [], torch.randn(500, 64, requires_grad=True)

    def region(x):
        kept.append((x * 2).relu())
        return kept[-1].sin()

    with memwatch.profile(holders=holders) as prof:
        again(region, x).sum().backward()
        at_peak = torch.zeros(2000, 64)
        again_used = kept[-1] * 2
    del at_peak, again_used
    peak = prof.at_peak
    assert set(peak.loc[peak["category"] == "recomputed", "op_name"]) == {"aten.relu.default"}
    assert not peak["holder"].str.contains("a checkpoint, which ran").any(), peak["holder"].tolist()


@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_what_a_policy_saves_is_its_checkpoints_until_backward_has_read_it(intercept):
    """First as a result saved for the region, then taken over by the region that runs again; torch's wrapper says."""
    net = Net(selectively)
    with memwatch.profile(intercept=intercept) as prof:
        net(torch.randn(512, WIDTH, requires_grad=True)).sum().backward()
    peak = prof.at_peak[prof.at_peak["op_name"] == "aten.addmm.default"]
    peak = peak[peak["holder_kind"] != "running op"]
    assert set(peak["category"]) == {"activation"}
    assert set(peak["holder_evidence"]) == {"structure"}
    assert set(peak["holder"]) == {
        "a selective checkpoint, which saves it for when its region runs again",
        "a checkpoint, whose region took the saved result of addmm over and keeps it until backward reads it",
    }


def test_what_smaller_regions_spare_is_the_sum_of_all_runs():
    """A run is judged by the ops and the memory of its own, whatever else was recorded."""
    facts = _two_steps(Grouped(4, again))._tables.facts
    runs = list(range(len(facts.recomputes.stack)))
    assert len(runs) == 4
    alone = [SmallerRegions(facts, [run]) for run in runs]
    together = SmallerRegions(facts, runs)
    assert (together.bytes_of_event() == sum(each.bytes_of_event() for each in alone)).all()
    assert together.spared == [row for each in alone for row in each.spared]
    made = facts.allocations.op[together.spared]
    assert {int(run) for run in facts.recomputes.run_of_op[made]} == set(runs)


def test_rows_are_found_by_their_number():
    grouped = Numbered(np.array([3, -1, 2, 3, 0]))
    assert [grouped.within(start, start + 1).tolist() for start in (-1, 0, 1, 2, 3)] == [
        [1], [4], [], [2], [0, 3],
    ]  # fmt: skip
    assert grouped.within(2, 9).tolist() == [2, 0, 3]
