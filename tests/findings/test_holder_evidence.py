"""The evidence of a holder: "seen" means that a sample at the peak found it. The rest is inferred or not seen."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import memwatch
from memwatch.capture.schema import EVIDENCE
from memwatch.kinds.holders import HolderEvidence
from memwatch.record.holders import state
from memwatch.record.holders.state import SamplingCosts, SamplingSchedule
from memwatch.report.stats import format_stats, stats

WIDE = 256
SHARED = None


class Store:
    def __init__(self):
        self.keys = torch.zeros(1, 8, WIDE)


def update(store, key):
    store.keys = torch.cat([store.keys, key], 1)
    return store.keys


def decode():
    """The attention needs more than the cache, so that the peak lies after `update` has returned."""
    store, x = Store(), torch.randn(1, 64, WIDE)
    for _ in range(24):
        keys = update(store, torch.randn(1, 64, WIDE))
        x = functional.softmax(x @ keys.transpose(1, 2), -1) @ keys
        del keys
    return x


def decode_to_a_cat():
    store = Store()
    for _ in range(24):
        update(store, torch.randn(1, 64, WIDE))
    return store


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.keys = nn.Linear(WIDE, WIDE), None

    def forward(self, x):
        key = self.key(x)
        self.keys = key if self.keys is None else torch.cat([self.keys, key], 1)
        return functional.softmax(x @ self.keys.transpose(1, 2), -1) @ self.keys


@torch.no_grad()
def generate():
    model, x = Cached(), torch.randn(4, 32, WIDE)
    for _ in range(16):
        x = model(x)
    return x


def keep_what_a_call_makes():
    """`part` is dead when its function has returned; the list has the tensor."""
    kept = []

    def make():
        part = torch.ones(512, WIDE)
        kept.append(part)
        return part.sum() + torch.ones(1024, WIDE).sum()

    for _ in range(6):
        make()
    return torch.zeros(2048, WIDE)


def pass_results_on():
    """`hidden` of a call that has returned is the caller's `first` and `second`."""

    def make(x):
        hidden = x.relu()
        scaled = hidden * 2
        scaled.sum()
        return hidden

    first = make(torch.randn(1024, WIDE))
    second = make(torch.randn(1024, WIDE))
    return first + second + torch.ones(1024, WIDE)


def wait_in_a_list():
    waiting = [torch.ones(WIDE, WIDE) * number for number in range(12)]
    done = []
    while waiting:
        done.append(waiting.pop().exp())
    return torch.stack(done)


def train():
    torch.manual_seed(0)
    data, bank = torch.randn(2000, WIDE), []
    model = nn.Sequential(nn.Linear(WIDE, 2 * WIDE), nn.ReLU(), nn.Linear(2 * WIDE, WIDE))
    average = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        x = data[torch.randint(0, 2000, (128,))]
        out = model(x)
        bank.append(out.detach().clone())
        functional.mse_loss(out, x).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, parameter in zip(average, model.parameters(), strict=True):
                mean.lerp_(parameter, 0.1)


def end_a_variable():
    """A look sees the variable; before the peak an object takes its tensor over."""
    box = Store()
    x = torch.zeros(1000, WIDE)
    box.first, box.kept = torch.zeros(2000, WIDE), x
    del x
    box.more = [torch.zeros(40, WIDE) for _ in range(6)]
    return box


def end_a_global():
    global SHARED  # noqa: PLW0603
    box, SHARED = Store(), torch.zeros(1000, WIDE)
    box.first, box.kept = torch.zeros(2000, WIDE), SHARED
    SHARED = None
    box.more = [torch.zeros(40, WIDE) for _ in range(6)]
    return box


PROGRAMS = [
    decode, decode_to_a_cat, generate, keep_what_a_call_makes, pass_results_on, wait_in_a_list, train,
    end_a_variable, end_a_global,
]  # fmt: skip


def profiled(program):
    torch.manual_seed(0)
    with memwatch.profile() as prof:
        kept = program()
    del kept
    return prof


def looked_at(program, op, monkeypatch):
    """Record a program with one sample, in the middle of `op`."""
    left = [op]

    def is_worth_it(self, born_bytes, live_bytes, started):
        return bool(left) and started == left[0] + 1 and left.pop() == op

    with monkeypatch.context() as patch:
        patch.setattr(SamplingSchedule, "is_worth_it", is_worth_it)
        patch.setattr(SamplingSchedule, "worth_from_bytes", lambda self: -(1 << 60))
        return profiled(program)


def keys_at(tables, op):
    """Return the holders that the sample in the middle of an op saw, by storage."""
    known = tables._holders._samples._rows
    rows = known.table
    found: dict[int, set] = {}
    for seen, storage, path in zip(rows["op"], rows["storage"], rows["path"], strict=True):
        if seen == op + 1:
            found.setdefault(int(storage), set()).add(known.holder(int(path)).key)
    return found


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_told_as_seen_is_what_a_look_at_the_peak_sees(program, monkeypatch):
    """The truth is a second run of the same program, with one look right at the op of the peak."""
    tables = profiled(program)._tables
    op = tables.facts.op_at_peak
    truth = looked_at(program, op, monkeypatch)._tables
    assert len(truth.facts.allocations) == len(tables.facts.allocations)
    known = keys_at(truth, op)
    rows = tables.at_peak.index.tolist()
    told = tables._holders.describe(rows, tables.facts.curve.peak_event)
    seen = [
        (row, holder)
        for row, holder in zip(rows, told, strict=True)
        if holder.evidence is HolderEvidence.SEEN and holder.edges
    ]
    false = [(row, holder.told) for row, holder in seen if holder.key not in known.get(row, ())]
    assert false == []


@pytest.mark.parametrize("program", [end_a_variable, end_a_global])
def test_a_variable_that_was_seen_before_the_peak_may_have_ended(program):
    """Samples cannot see a `del` or a rebinding, so a holder of an earlier sample is inferred."""
    peak = profiled(program).at_peak
    (first,) = peak.loc[peak["nbytes"] == 1000 * WIDE * 4, "holder"]
    assert first.endswith("(inferred: an earlier search found this reference; it may be gone)")


def test_of_peaks_that_are_as_high_the_first_that_was_looked_at_is_told(monkeypatch):
    """Each step of a training has the same peak. If memwatch took a sample at the fifth, parameters are known there."""
    may_look = []
    monkeypatch.setattr(SamplingCosts, "may_look_at_roles", lambda self, known_count: bool(may_look))
    model = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Tanh(), nn.Linear(WIDE, 1))
    optimizer = torch.optim.SGD(model.parameters())
    with memwatch.profile() as prof:
        for step in range(8):
            if step == 4:
                may_look.append(True)
            optimizer.zero_grad()
            model(torch.ones(WIDE, WIDE)).sum().backward()
            optimizer.step()
            prof.step()
    live_bytes = prof.timeline["live_bytes"]
    assert live_bytes[prof.peak_event] == live_bytes.max()
    assert prof.steps["start_op"][4] <= prof.timeline["op"][prof.peak_event]
    parameter = prof.at_peak[(prof.at_peak["category"] == "parameter") & (prof.at_peak["nbytes"] > 4 * WIDE)]
    assert list(parameter["holder_evidence"]) == ["structure"]
    assert f"Op {prof.timeline['op'][prof.peak_event]}, " in prof.summary(color=False)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_holder_says_how_it_is_known(program):
    """Exactly the inferred holders have a text that marks them as inferred."""
    peak = profiled(program).at_peak
    assert set(peak["holder_evidence"]) <= set(EVIDENCE)
    inferred = peak["holder"].str.contains("(inferred: ", regex=False)
    assert (inferred == (peak["holder_evidence"] == "inferred")).all()
    assert not peak["holder"].str.contains("unnamed value of the running call").any()


@pytest.mark.parametrize("program", [decode, decode_to_a_cat, generate])
def test_a_cache_that_every_token_replaces_is_named(program):
    """No sample saw the tensor that the last token replaced. It is reported like the earlier ones."""
    prof = profiled(program)
    peak = prof.at_peak
    caches = peak[(peak["op_name"] == "aten.cat.default") & (peak["holder_kind"] != "running op")]
    assert len(caches) == 1
    assert caches["holder"].str.contains(".keys").all()
    assert set(caches["holder_evidence"]) <= {"seen", "inferred"}


@pytest.mark.parametrize("program", [decode, decode_to_a_cat, generate])
def test_a_cache_that_every_pass_replaces_is_held(program):
    """Without steps: an object keeps it from one call of the root module, or one pass of a loop, into the next."""
    peak = profiled(program).at_peak
    assert set(peak.loc[peak["op_name"] == "aten.cat.default", "category"]) == {"held"}


@pytest.mark.parametrize("program", [keep_what_a_call_makes, pass_results_on])
def test_a_variable_of_a_call_that_has_returned_is_no_holder(program):
    """Whatever a sample saw while the call ran."""
    holders = set(profiled(program).at_peak["holder"])
    assert not any("of `make`" in holder for holder in holders), holders


@pytest.mark.parametrize("program", [keep_what_a_call_makes, pass_results_on, wait_in_a_list])
def test_without_iterations_what_local_variables_keep_is_temporary(program):
    assert "held" not in set(profiled(program).storages["category"])


def test_what_iterations_share_is_held_and_what_one_makes_is_not():
    """Data, averaged weights and a bank of features are held; a batch is the model's input."""
    prof = profiled(train)
    storages = prof.storages
    held = storages[storages["category"] == "held"]
    shapes = set(held["tensor"])
    assert f"float32[2000, {WIDE}]" in shapes
    assert f"float32[{2 * WIDE}, {WIDE}]" in shapes
    clones = storages[storages["op_name"] == "aten.clone.default"]
    assert set(clones["category"]) == {"held"}  # the averages and the bank
    batches = storages[storages["op_name"] == "aten.index.Tensor"]
    assert set(batches["category"]) == {"input"}
    assert "held" not in set(storages.loc[storages["op_name"].str.contains("sqrt|addmm|relu"), "category"])


def test_a_gradient_is_no_attribute_of_the_program():
    """`.grad` has its own kind, so figures about attributes count only the program's objects."""
    peak = profiled(train).at_peak
    gradients = peak[peak["category"] == "gradient"]
    assert len(gradients)
    assert set(gradients["holder_kind"]) <= {"gradient", "running op"}
    assert "gradient" not in set(peak.loc[peak["category"] != "gradient", "holder_kind"])


def test_summary_and_stats_say_how_holders_are_known():
    """The shares add up to the whole peak."""
    prof = profiled(train)
    nbytes = stats(prof)["holder_evidence_bytes"]
    assert sum(nbytes.values()) == int(prof.at_peak["nbytes"].sum())
    assert "% seen or read from torch's records" in " ".join(prof.summary(rows=5, color=False).split())
    assert "% seen or read from torch's records" in format_stats(stats(prof), color=False)


def test_the_peak_that_comes_again_is_looked_at_whatever_the_looks_before_took(monkeypatch):
    """On a busy machine and on a quiet one, parameters are known at the peak of a training's second step."""
    noted = SamplingCosts.roles_looked_at
    monkeypatch.setattr(SamplingCosts, "roles_looked_at", lambda self, count, _: noted(self, count, 1 << 60))
    monkeypatch.setattr(state, "_FREE_OF_SMALL_PROGRAMS", 0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDE, WIDE), nn.Tanh()) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters())
    with memwatch.profile() as prof:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(4 * WIDE, WIDE)).sum().backward()
            optimizer.step()
            prof.step()
    parameter = prof.at_peak[(prof.at_peak["category"] == "parameter") & (prof.at_peak["nbytes"] > 4 * WIDE)]
    assert set(parameter["holder_evidence"]) == {"structure"}
