"""Every word as true as the bytes: real programs, whose truth is known by construction, against what is said."""

from __future__ import annotations

import gc

import patterns_autograd  # noqa: F401
import patterns_data  # noqa: F401
import patterns_frameworks  # noqa: F401
import patterns_generation  # noqa: F401
import patterns_python  # noqa: F401
import patterns_recompute  # noqa: F401
import patterns_training  # noqa: F401
import pytest
import torch
from truth_facts import PATTERNS
from truth_oracle import question
from truth_score import score

import memwatch

RIGHT_RATIO = 0.95
KNOWN_RATIO = 0.9
OTHERWISE_UNDER_A_MODE = {
    "compiled_with_aot_eager": "torch compiles nothing while the oracle's mode is active"
}


@pytest.fixture(autouse=True)
def _one_thread_and_one_seed():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    gc.collect()


@pytest.mark.words
@pytest.mark.parametrize("name", PATTERNS)
def test_what_is_said_of_the_peak_is_true(name, monkeypatch):
    """No holder that is told as seen is false, and 95 % of the bytes have category, module, line and holder right."""
    ran = PATTERNS[name].run()
    assert ran.increase_bytes in (None, ran.prof.peak_increase_bytes)
    found = score(PATTERNS[name], ran)
    assert found.false == []
    assert found.known_ratio >= KNOWN_RATIO
    assert found.right_ratio >= RIGHT_RATIO, "\n".join(found.wrong)
    if name not in OTHERWISE_UNDER_A_MODE:
        assert variables_that_do_not_hold(name, ran.prof, monkeypatch) == []


def variables_that_do_not_hold(name, prof, monkeypatch):
    """Run the program again, plainly, and return what was said of variables that do not hold what they are to hold."""
    oracle = question(prof)
    if oracle is None:
        return []
    torch.manual_seed(0)
    monkeypatch.setattr(memwatch, "profile", oracle)
    PATTERNS[name].run()
    return oracle.false


@pytest.mark.parametrize("name", PATTERNS)
def test_findings_name_a_line_of_the_program(name):
    """A finding is about something that its reader can edit."""
    prof = PATTERNS[name].run().prof
    elsewhere = [
        str(finding) for finding in prof.findings if not finding.site.startswith(PATTERNS[name].file)
    ]
    assert elsewhere == []
