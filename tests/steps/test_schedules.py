"""Schedules: the recorded steps, and the facts about the others."""

from __future__ import annotations

import itertools
import re
import warnings

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerAction

import memwatch
from memwatch.errors import MemwatchError
from memwatch.record.steps import Sampled

WAYS = pytest.mark.parametrize("intercept", ["key-native", "mode-native", "key-python"], indirect=True)
BY_OPS = [
    "ops",
    "uses",
    "births",
    "deaths",
    "roles",
    "packs",
    "unpacks",
    "calls",
    "steps",
    "allocator",
    "step_curve",
]
"""Tables that grow with the recorded steps, not with the time."""
EVERY_FOURTH = memwatch.schedule(wait=3, active=1)


def grows_in(step):
    """Return how many bytes more a step of `program` holds at once: no two steps hold the same."""
    return 4 * 1000 * (step * 5 % 11 + 1)


def program(steps, *, intercept="auto", **options):
    """Run steps of known sizes in a block."""
    with memwatch.profile(intercept=intercept, **options) as prof:
        for step in range(steps):
            made = torch.ones(grows_in(step) // 4)
            del made
            prof.step()
    return prof


def train(steps, *, marked=True, intercept="auto", keep_each=0, **options):
    """Train a small model in a block; each step may leave some floats in a list."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer, data, kept = torch.optim.Adam(model.parameters()), torch.ones(8, 16), []
    with memwatch.profile(intercept=intercept, **options) as prof:
        for _ in range(steps):
            optimizer.zero_grad()
            model(data).sum().backward()
            optimizer.step()
            if keep_each:
                kept.append(torch.ones(keep_each))
            if marked:
                prof.step()
    return prof


def test_a_schedule_means_what_it_means_in_torch_profiler():
    """Step by step, for many schedules."""
    for skip_first, wait, warmup, active, repeat in itertools.product((0, 3), (0, 2), (0, 1), (1, 2), (0, 2)):
        counts = {
            "skip_first": skip_first,
            "wait": wait,
            "warmup": warmup,
            "active": active,
            "repeat": repeat,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that there is no warmup
            theirs = torch.profiler.schedule(**counts)
        ours = memwatch.schedule(**counts)
        for step in range(20):
            is_last = theirs(step) is ProfilerAction.RECORD_AND_SAVE
            assert ours(step) is (ProfilerAction.RECORD if is_last else theirs(step))


def test_every_and_first_together():
    """The first steps, and then one of so many."""
    sampled = Sampled(every=5, first=2)
    assert [step for step in range(12) if sampled(step) is ProfilerAction.RECORD] == [0, 1, 5, 10]
    assert [step for step in range(6) if Sampled(first=2)(step) is ProfilerAction.RECORD] == [0, 1]


@WAYS
def test_the_peak_of_every_step_is_exact(intercept):
    """This holds for recorded steps and for others.

    It counts the bytes that are live at entry, and the step's own bytes.
    """
    prof = program(9, intercept=intercept, schedule=EVERY_FOURTH)
    steps = prof.steps
    assert steps["recorded"].tolist() == [False, False, False, True] * 2 + [False] * 2
    increases = (steps["peak_bytes"] - prof.baseline_bytes).tolist()
    assert increases == [*(grows_in(step) for step in range(9)), 0]
    assert prof.peak_bytes == steps["peak_bytes"].max()
    assert prof.at_peak["nbytes"].sum() == prof.peak_bytes
    assert set(prof.ops["step"]) == {3, 7}
    assert (steps["floor_bytes"] == prof.baseline_bytes).all()


@WAYS
def test_what_an_unrecorded_step_made_says_so(intercept):
    """Its category comes from its role, its name from the role or the step. Its phases are unknown."""
    prof = train(6, intercept=intercept, schedule=EVERY_FOURTH)
    recorded = prof.storages[
        (prof.storages["origin"] == "unrecorded") & (prof.storages["category"] != "unknown")
    ]
    assert set(recorded["category"]) == {"optimizer state", "gradient"}
    assert recorded["name"].str.contains("weight|bias|step").all()
    nameless = prof.storages[
        (prof.storages["origin"] == "unrecorded") & (prof.storages["category"] == "unknown")
    ]
    assert nameless["name"].str.fullmatch("made in step [0-9]+, which was not recorded").all()
    state = prof.storages[prof.storages["category"] == "optimizer state"]
    assert (state["lag_ns"] + state["drag_ns"] + state["void_ns"] == 0).all()
    assert [kind for kind, _ in prof.notes if kind == "steps"] == ["steps"]
    assert not [text for kind, text in prof.notes if kind == "recorder"]


def test_the_peak_of_an_unrecorded_step_names_the_step():
    """Summary and page name the step, because no op of it was recorded."""
    prof = program(9, schedule=EVERY_FOURTH)
    highest = int(prof.steps["peak_bytes"].argmax())
    assert not prof.steps["recorded"][highest]
    assert f"In step {highest}, which was not recorded" in prof.summary(color=False)


@WAYS
def test_an_optimizer_marks_the_steps_that_the_program_does_not(intercept):
    """A step ends with the first optimizer's step. Its peaks equal the peaks with marks one step later."""
    prof = train(8, marked=False, intercept=intercept, schedule=EVERY_FOURTH)
    assert prof.steps["recorded"].tolist() == [False, False, False, True] * 2 + [False]
    assert (prof.ops["name"] == "aten.addmm.default").sum() == 2 * 2


def test_marks_of_the_program_count_once_the_first_has_come():
    """The end of the first optimizer's step and the first mark are the end of one step."""
    prof = train(8, schedule=EVERY_FOURTH)
    assert prof.steps["recorded"].tolist() == [False, False, False, True] * 2 + [False]


@WAYS
def test_a_warmup_step_is_left_out(intercept, tmp_path):
    """Memory that it leaves is named. Its ops are missing, and the numbers of the others have no gaps."""
    path = tmp_path / "run.memwatch"  # a file is checked when it is read
    prof = train(8, intercept=intercept, schedule=memwatch.schedule(wait=2, warmup=1, active=1), path=path)
    assert prof.steps["recorded"].tolist() == [False, False, False, True] * 2 + [False]
    assert set(prof.ops["step"]) == {3, 7}
    assert not [text for kind, text in prof.notes if kind == "damaged"]


@WAYS
def test_peaks_alone_are_kept(intercept):
    """A step that sets a new peak is kept whole, the others leave their peaks alone."""
    prof = program(12, intercept=intercept, keep="peaks")
    new = [step for step in range(12) if all(grows_in(step) > grows_in(other) for other in range(step))]
    assert prof.steps.index[prof.steps["recorded"]].tolist() == new
    assert set(prof.ops["step"]) == set(new)
    assert (prof.steps["peak_bytes"] - prof.baseline_bytes).tolist()[:-1] == [
        grows_in(step) for step in range(12)
    ]
    assert prof.at_peak["line"].str.contains("test_schedules").any()


def test_a_step_that_fails_is_kept():
    """Its ops are there, though it is lower than others."""
    prof = memwatch.profile(keep="peaks")

    @prof
    def fails():
        for size in (1000, 100, 10):
            torch.ones(size).exp()
            prof.step()
        torch.ones(5).cos()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert "aten.cos.default" in set(prof.ops["name"])
    assert (prof.ops["name"] == "aten.exp.default").sum() == 1


@pytest.mark.parametrize(
    "options", [{"schedule": memwatch.schedule(wait=9, active=1, repeat=1)}, {"keep": "peaks"}]
)
def test_many_steps_take_no_more_than_few(options, tmp_path):
    """Only the curve of the steps gets longer: a row for each."""
    rows = []
    for steps in (30, 150):
        path = tmp_path / f"{steps}.memwatch"
        train(steps, path=path, **options)
        capture = memwatch.load(path).capture
        rows.append({name: capture.rows(name) for name in BY_OPS})
    few, many = rows
    assert few.pop("step_curve") + 120 == many.pop("step_curve")
    assert all(count <= few[name] + 8 for name, count in many.items()), (few, many)


def test_growth_is_told_with_its_line_and_its_rate():
    """Each step leaves 40 kB in a list; of the steps that were recorded it is known at which line."""
    prof = train(40, keep_each=10_000, schedule=EVERY_FOURTH)
    (finding,) = [finding for finding in prof.findings if finding.kind == "growth"]
    # where the first step ends depends on when it was written: its own 39 KiB may count or not
    assert re.search(r"grows by (39|40)\.\d\d KiB per step since step 1", finding.advice)
    assert "test_schedules.py" in finding.advice
    assert finding.nbytes > 35 * 40_000
    assert finding.predicted_peak_bytes < prof.peak_bytes - 30 * 40_000


def test_what_is_filled_once_is_no_growth():
    """The cases are a cache that one step fills, and a program that leaves nothing."""
    with memwatch.profile() as prof:
        kept = []
        for step in range(30):
            torch.ones(1000).exp()
            if step == 12:
                kept.append(torch.ones(100_000))
            prof.step()
    assert not [finding for finding in prof.findings if finding.kind == "growth"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": "some"}, "'all' or 'peaks'"),
        ({"schedule": 3}, "memwatch.schedule"),
        ({"schedule": EVERY_FOURTH, "replay": True}, "every op"),
        ({"keep": "peaks", "allocator": False}, "allocator=False"),
    ],
)
def test_what_cannot_be_is_refused(options, words):
    """The message gives the next step."""
    with pytest.raises(MemwatchError, match=words), memwatch.profile(**options):
        pass


def test_a_schedule_records_something():
    """A cycle without an active step, or a negative count, is refused."""
    with pytest.raises(MemwatchError, match="active"):
        memwatch.schedule(active=0)
    with pytest.raises(MemwatchError, match="wait"):
        memwatch.schedule(wait=-1)


KILLED = """
import os, signal, time, torch, memwatch
with memwatch.profile("run.memwatch", schedule=memwatch.schedule(wait=9, active=1)) as prof:
    for step in range(1000):
        torch.ones(1000 + step)
        prof.step()
        if step == 100:
            time.sleep(1.2)  # longer than rows wait
        if step == 150:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("native", ["1", "0"])
def test_a_killed_run_keeps_the_steps_that_were_flushed(native, fresh_python, tmp_path):
    """Each has its exact peak, and the summary mentions the missing last seconds."""
    assert fresh_python(KILLED, MEMWATCH_NATIVE=native).returncode == -9
    run = memwatch.load(tmp_path / "run.memwatch")
    steps = run.steps
    assert len(steps) > 100
    peaks = (steps["peak_bytes"] - run.baseline_bytes).tolist()
    assert peaks == [4 * (1000 + step) for step in range(len(steps))]
    assert run.peak_bytes >= max(steps["peak_bytes"])
    (unfinished,) = [text for kind, text in run.notes if kind == "unfinished"]
    assert "live bytes on cpu" in unfinished
    assert f"step {len(steps) - 1}" in run.summary(color=False) or steps["recorded"].iloc[-1]
