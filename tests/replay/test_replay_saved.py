"""From a file alone: the plan is the same, and it can be replayed with inputs of the recorded shapes."""

from __future__ import annotations

import math

import pytest
from replay_programs import PROGRAMS
from replay_recording import record

import memwatch
from memwatch.replay.api import plan, replay, replayable


@pytest.mark.parametrize("name", ["resnet, BatchNorm, momentum SGD", "gpt, AdamW plain"])
def test_plan_from_a_file_is_the_same(tmp_path, name):
    """Arguments survive the file: same graph, same plan, same measured peak with synthetic inputs."""
    prof = record(PROGRAMS[name](), path=tmp_path / "run.memwatch")
    loaded = memwatch.load(tmp_path / "run.memwatch")
    live, saved = plan(prof), plan(loaded)
    assert live.order == saved.order
    assert live.fingerprint == saved.fingerprint
    real, synthetic = replay(live), replay(saved)
    assert real.peak_increase_bytes == synthetic.peak_increase_bytes == saved.peak_increase_bytes
    assert synthetic.synthetic
    assert synthetic.identical is None
    assert math.isnan(synthetic.max_abs_diff)
    assert "synthetic" in str(synthetic)


def test_plan_from_a_path(tmp_path):
    """A path is a source as well, and so is a capture."""
    prof = record(PROGRAMS["u-net"]())
    prof.save(tmp_path / "run.memwatch")
    by_path, by_capture = plan(tmp_path / "run.memwatch"), plan(prof.capture)
    assert by_path.order == by_capture.order == plan(prof).order


def test_same_recording_gives_the_same_program_each_time():
    """Plans of one recording with several budgets know of each other: the program is read once."""
    prof = record(PROGRAMS["u-net"]())
    assert replayable(prof) is replayable(prof)


def test_recorded_inputs_go_with_the_profile():
    """Strong references to inputs end with the profile object."""
    import gc
    import weakref

    prof = record(PROGRAMS["u-net"]())
    kept = weakref.ref(prof._replay_inputs)
    replayable(prof)
    del prof
    gc.collect()
    assert kept() is None


def test_package_can_be_called(fresh_python):
    """`memwatch.replay` is the package and the function at once, whichever import came first."""
    code = (
        "import torch, memwatch, memwatch.replay\n"
        "x = torch.ones(4)\n"
        "with memwatch.profile(replay=True) as prof:\n"
        "    y = x + 1\n"
        "from memwatch.replay import plan\n"
        "print(memwatch.replay(plan(prof)).identical)\n"
    )
    done = fresh_python(code)
    assert (done.stdout, done.stderr) == ("True\n", "")
