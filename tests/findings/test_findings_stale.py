"""Stale memory has a finding: an object keeps it from one iteration into the next, and nothing reads it there."""

from __future__ import annotations

import gc
import linecache

import pytest
import stale_programs

import memwatch

ALSO_DIFFERENT = {"one exception", "cache of one", "function"}
"""Cases whose twin differs in more than the one reference, or whose peak has other findings."""


def profiled(program):
    gc.collect()
    with memwatch.profile() as prof:
        program()
    return prof


def stale(prof):
    return [finding for finding in prof.findings if finding.kind == "stale"]


@pytest.mark.parametrize("name", stale_programs.CASES)
def test_stale_memory_has_its_holder_and_line_and_its_twin_is_silent(name):
    """The predicted fall of the peak equals the fall that the corrected twin measures."""
    program, words, source, twin = stale_programs.CASES[name]
    held, mended = profiled(program), profiled(twin)
    (finding,) = stale(held)
    assert all(word in str(finding) for word in words), str(finding)
    file, _, line = finding.site.rpartition(":")
    assert source in linecache.getline(file, int(line or 0))
    assert finding.nbytes >= stale_programs.KEPT_BYTES
    assert stale(mended) == []
    if name not in ALSO_DIFFERENT:
        assert finding.predicted_peak_bytes - held.baseline_bytes == mended.peak_increase_bytes


@pytest.mark.parametrize("program", stale_programs.SILENT)
def test_what_a_later_iteration_wants_is_not_stale(program):
    assert [str(finding) for finding in stale(profiled(program))] == []


def test_what_one_exception_keeps_is_one_finding():
    """The end of the exception frees the variables of all calls on its traceback."""
    (finding,) = stale(profiled(stale_programs.kept_exception))
    assert finding.nbytes == 3 * stale_programs.KEPT_BYTES  # `x`, `out` and `doubled`


def test_memory_that_is_stale_is_named_though_the_peak_stays():
    """It is all that the program holds between two iterations."""
    prof = profiled(stale_programs.last_input)
    (finding,) = stale(prof)
    assert finding.predicted_peak_bytes == prof.peak_bytes
    assert "the peak would fall" not in finding.advice
