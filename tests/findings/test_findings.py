"""Findings name the variable that holds useless memory, and predict to the byte the peak without this reference."""

from __future__ import annotations

import functools
import gc

import drag_arguments
import drag_frames
import drag_objects
import drag_parallel
import drag_programs
import drag_python
import drag_realistic
import drag_scopes
import drag_training
import pytest
import torch
from seed_thunder import memory_peak_efficient_func, memory_peak_inefficient_func

import memwatch

MIB = 2**20
MODULES = (
    drag_arguments, drag_frames, drag_objects, drag_parallel, drag_programs, drag_python, drag_realistic,
    drag_scopes, drag_training,
)  # fmt: skip
CASES = {name: case for module in MODULES for name, case in module.CASES.items()}
# twins that differ in more than one reference
OTHERWISE_DIFFERENT = {
    "half-made call", "recursion", "ordered dictionary", "loss history", "running sum", "GAN", "average",
    "validation with graph", "checkpoints", "with a name", "with no name",
    "*args", "**kwargs", "method", "map", "view", "graph never used",
    "average made anew", "replay with graphs", "retries", "teacher", "beams",
}  # fmt: skip


@functools.cache
def profiled(program):
    gc.collect()  # garbage of other tests that goes inside the block would be part of its baseline
    gc.freeze()  # the next collection then passes over the profiles that are kept here
    with memwatch.profile() as prof:
        program()
    return prof


@pytest.mark.parametrize("name", CASES)
def test_every_holding_program_is_told_who_holds(name):
    """A tensor alive after its last use is a finding with its variable and function; the mended twin has none."""
    program, words, twin = CASES[name]
    told = [str(finding) for finding in profiled(program).findings]
    assert any(all(word in text for word in words) for text in told), told
    assert profiled(twin).findings == []


@pytest.mark.parametrize("name", sorted(CASES.keys() - OTHERWISE_DIFFERENT))
def test_the_predicted_peak_is_the_measured_peak_of_the_mended_twin(name):
    """The predicted peak with all findings fixed equals the measured peak of the mended program."""
    program, _, twin = CASES[name]
    held = profiled(program)
    predicted = held.findings[0].together_peak_bytes - held.baseline_bytes
    assert predicted == profiled(twin).peak_increase_bytes


@pytest.mark.parametrize("program", drag_realistic.SILENT)
def test_what_a_loop_needs_in_its_next_pass_is_no_finding(program):
    """A memory bank must be kept, and so must the tensors that one op gathers."""
    assert [str(finding) for finding in profiled(program).findings] == []


def inputs():
    return [torch.randn(256, 256) for _ in range(10)], torch.randn(256, 256)


def test_lists_that_wait_are_named_in_thunder_1337():
    """The stage-by-stage order costs 2.75 MiB, the path-by-path order 0.75.

    The findings name the lists t1s, t2s, t3s.
    """
    t0s, a = inputs()
    with memwatch.profile() as slow:
        memory_peak_inefficient_func(t0s, a)
    with memwatch.profile() as fast:
        memory_peak_efficient_func(t0s, a)
    assert (slow.peak_increase_bytes, fast.peak_increase_bytes) == (2.75 * MIB, 0.75 * MIB)
    told = " ".join(finding.holder for finding in slow.findings)
    assert all(
        f"`{name}`, local variable of `memory_peak_inefficient_func`" in told
        for name in ("t1s", "t2s", "t3s")
    )
    assert slow.findings[0].together_peak_bytes - slow.baseline_bytes == fast.peak_increase_bytes
    assert fast.findings == []


def test_inputs_held_by_the_caller_are_named_where_they_count():
    """Made inside the block, the inputs count, and the caller's t0s is named as their holder."""

    def run():
        t0s, a = inputs()
        memory_peak_inefficient_func(t0s, a)

    assert any("`t0s`, local variable of `run`" in finding.holder for finding in profiled(run).findings)


def test_a_finding_lowers_the_peak(sampled):
    """Each finding lowers the peak, alone or together with the others."""
    for program, _, _ in sampled(CASES.values(), 4):
        prof = profiled(program)
        for finding in prof.findings:
            assert finding.together_peak_bytes < prof.peak_bytes
            assert finding.predicted_peak_bytes <= prof.peak_bytes


def test_holders_can_be_switched_off():
    """Then memwatch takes no samples, so the finding does not name a variable."""
    with memwatch.profile(holders=False) as prof:
        drag_programs.comprehension_keeps()
    assert prof.capture.rows("holders") == 0
    assert "local" not in set(prof.at_peak["holder_kind"])
