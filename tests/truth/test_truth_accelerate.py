"""Every word as true as the bytes, of programs that use accelerate."""

from __future__ import annotations

import pytest

pytest.importorskip("accelerate")

import patterns_accelerate
import torch
from truth_checks import (
    programs_of,
    test_a_second_run_shows_the_same,  # noqa: F401
    test_findings_name_a_line_of_the_program,  # noqa: F401
    test_the_peak_is_that_of_a_plain_run,  # noqa: F401
    test_what_is_said_of_the_peak_is_true,  # noqa: F401
)

PROGRAMS = programs_of(patterns_accelerate)


def test_a_loop_of_an_accelerator_is_recorded(tmp_path):
    """The peak goes to the accelerator's trackers, and the page shows it; a loop that fails raises its own error."""
    from accelerate.tracking import GeneralTracker

    from memwatch.integrations.accelerate import profile

    class Tracker(GeneralTracker):
        name, requires_logging_directory = "test", False

        def __init__(self):
            super().__init__()
            self.logged = {}

        @property
        def tracker(self):
            return self

        def log(self, values, step=None, **kwargs):
            self.logged |= values

    tracker = Tracker()
    accelerator = patterns_accelerate.accelerator_of(log_with=tracker)
    accelerator.init_trackers("memory")
    with profile(accelerator, page=tmp_path / "a.html", stacks=False) as prof:
        accelerator.backward(patterns_accelerate.Net()(torch.ones(4, patterns_accelerate.IN)).sum())
        prof.step()
        step = dict(tracker.logged)
    assert step["memwatch/steps"] == 1
    assert step["memwatch/step_peak_bytes"] == prof.steps.peak_bytes[0] > 0
    assert step["memwatch/step_peak_bytes/parameter"] > 0
    assert tracker.logged["memwatch/peak_bytes"] == prof.peak_bytes
    assert f'data-bytes="{prof.peak_bytes}"' in (tmp_path / "a.html").read_text()
    with pytest.raises(ZeroDivisionError), profile(accelerator):
        raise ZeroDivisionError
