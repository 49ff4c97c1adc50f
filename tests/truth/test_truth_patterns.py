"""Every word as true as the bytes: real programs, whose truth is known by construction, against what is said."""

from __future__ import annotations

import gc

import patterns_autograd  # noqa: F401
import patterns_data  # noqa: F401
import patterns_frameworks  # noqa: F401
import patterns_generation  # noqa: F401
import patterns_python  # noqa: F401
import patterns_recompute  # noqa: F401
import patterns_roles  # noqa: F401
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


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(name):
    gc.collect()
    torch.manual_seed(0)
    return PATTERNS[name].run()


@pytest.fixture(scope="module", params=PATTERNS)
def ran(request):
    """One program, run once for all tests, and its name."""
    return request.param, run(request.param)


@pytest.mark.words
def test_what_is_said_of_the_peak_is_true(ran):
    """No holder that is told as seen is false, and 95 % of the bytes have category, module, line and holder right."""
    name, program = ran
    assert program.increase_bytes in (None, program.prof.peak_increase_bytes)
    found = score(PATTERNS[name], program)
    assert found.false == []
    assert found.known_ratio >= KNOWN_RATIO
    assert found.right_ratio >= RIGHT_RATIO, "\n".join(found.wrong)


@pytest.mark.words
def test_a_variable_that_is_named_holds_the_memory(ran, monkeypatch):
    """Run again, plainly, the program has each variable that was named, and it leads to a tensor of that size."""
    name, program = ran
    oracle = question(program.prof)
    if oracle is None or name in OTHERWISE_UNDER_A_MODE:
        return  # the peak is before the first op, or the oracle would see another program
    monkeypatch.setattr(memwatch, "profile", oracle)
    run(name)
    assert oracle.false == []


def test_findings_name_a_line_of_the_program(ran):
    """A finding is about something that its reader can edit."""
    name, program = ran
    file = PATTERNS[name].file
    assert [str(finding) for finding in program.prof.findings if not finding.site.startswith(file)] == []
