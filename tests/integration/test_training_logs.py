"""The figures of steps that the trainer callbacks log while a training runs."""

from __future__ import annotations

import warnings

import pytest
import torch

import memwatch
from memwatch.capture import CaptureError
from memwatch.integrations import training
from memwatch.integrations.training import Training
from memwatch.profile import Profile
from memwatch.record import steps


def train(logged, count=3, **options):
    block = Training(None, log=logged.append, **options)
    block.begin()
    for step in range(count):
        torch.ones(1000 * (step + 1))
        block.step()
    block.end()
    return block.profile


def test_only_the_first_step_is_logged_where_nothing_more_is_affordable(monkeypatch):
    monkeypatch.setattr(training, "_SHARE_RATIO", 0)
    logged = []
    prof = train(logged)
    assert [figures["memwatch/step_peak_bytes"] for figures in logged] == [prof.steps.peak_bytes[0]]


def test_a_log_is_of_all_steps_since_the_last_one(monkeypatch):
    logged = []
    due = iter([0, 0, float("inf")])  # the first step is logged whatever its share
    monkeypatch.setattr(training, "_SHARE_RATIO", 0)
    block = Training(None, log=logged.append)
    block.begin()
    for step, share in zip(range(3), due, strict=True):
        monkeypatch.setattr(training, "_SHARE_RATIO", share)
        torch.ones(1000 * (step + 1))
        block.step()
    block.end()
    assert [figures["memwatch/steps"] for figures in logged] == [1, 2]
    assert logged[1]["memwatch/step_peak_bytes"] == block.profile.steps.peak_bytes[1:3].max()


def test_steps_of_a_schedule_have_their_exact_peaks(monkeypatch):
    monkeypatch.setattr(steps, "_WRITE_S", 0.0)  # otherwise the rows of quick steps wait for the end
    monkeypatch.setattr(training, "_SHARE_RATIO", float("inf"))
    logged = []
    peaks = train(logged, 6, schedule=memwatch.schedule(wait=1, active=1)).steps.peak_bytes.tolist()
    assert peaks[:6] == [4000 * (step + 1) for step in range(6)]
    first = 0
    for figures in logged:
        after = first + figures["memwatch/steps"]
        assert figures["memwatch/step_peak_bytes"] == max(peaks[first:after])
        first = after
    assert 4 <= first <= 6  # the last steps are known at the end


def test_a_training_goes_on_where_a_reading_fails(monkeypatch):
    def so_far(self):
        raise CaptureError("the disk is gone")

    monkeypatch.setattr(Profile, "so_far", so_far)
    logged = []
    with pytest.warns(RuntimeWarning, match="steps are not logged any more: the disk is gone"):
        prof = train(logged)
    assert logged == []
    assert len(prof.steps) == 3


def test_an_open_block_can_be_read(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with memwatch.profile(tmp_path / "a.memwatch") as prof:
            kept = torch.ones(1000)
            assert prof.so_far().peak_bytes == prof.so_far().peak_bytes >= kept.nbytes
    assert prof.so_far() is None


def test_each_training_of_one_callback_has_files_of_its_own(tmp_path):
    """A search for good settings trains again, and no file is replaced."""
    block = Training(tmp_path / "run.memwatch", page=tmp_path / "peak.html")
    for number in (1, 2, 3):
        block.begin()
        torch.ones(1000 * number)
        block.step()
        assert block.end()["memwatch/peak_increase_bytes"] == 4000 * number
    names = {path.name for path in tmp_path.iterdir()}
    assert {"run.memwatch", "run-2.memwatch", "run-3.memwatch"} <= names
    assert {"peak.html", "peak-2.html", "peak-3.html"} <= names
