"""The tests that every program of these folders passes; a file of tests names its programs and imports them."""

from __future__ import annotations

import gc
from types import ModuleType

import pytest
import torch
from truth_count import AllocatorCount
from truth_facts import PATTERNS
from truth_oracle import is_view, question
from truth_score import score
from truth_witness import paths_of, what_is_misplaced

import memwatch

RIGHT_RATIO = 0.95
KNOWN_RATIO = 0.9
OTHERWISE_UNDER_A_MODE = {
    "compiled_with_aot_eager": "torch compiles nothing while the oracle's mode is active"
}


def programs_of(*modules: ModuleType) -> list[str]:
    """Return the names of the programs that some files declare."""
    files = {module.__file__ for module in modules}
    return [name for name, pattern in PATTERNS.items() if pattern.file in files]


def run(name):
    """Run a program anew."""
    gc.collect()
    torch.manual_seed(0)
    return PATTERNS[name].run()


def _what_lived(prof):
    """Return the live set at the peak, each birth and death, and the notes. Threads behave differently each time."""
    lives = prof.storages.loc[
        prof.at_peak.index, ["nbytes", "name", "origin", "birth_ns", "death_ns", "address"]
    ]
    return f"{lives.to_string()}\n{prof.notes}"


@pytest.mark.words
def test_what_is_said_of_the_peak_is_true(ran):
    """Every holder reported as seen is true, and 95 % of the bytes have category, module, line and holder right."""
    name, program = ran
    assert program.increase_bytes in (None, program.prof.peak_increase_bytes), _what_lived(program.prof)
    found = score(PATTERNS[name], program)
    assert found.false == []
    assert found.known_ratio >= KNOWN_RATIO
    assert found.right_ratio >= RIGHT_RATIO, "\n".join(found.wrong)


@pytest.mark.words
def test_a_variable_that_is_named_holds_the_memory(ran, monkeypatch):
    """Run again, plainly, the program has each variable that was named, and it leads to a tensor of that size."""
    name, program = ran
    oracle = question(program.prof, PATTERNS[name].file)
    if oracle is None:
        pytest.skip("the peak is before the first op")
    if name in OTHERWISE_UNDER_A_MODE:
        pytest.skip(OTHERWISE_UNDER_A_MODE[name])
    monkeypatch.setattr(memwatch, "profile", oracle)
    run(name)
    assert oracle.false == []


@pytest.mark.words
def test_a_second_run_shows_the_same(ran, monkeypatch):
    """In a second, plain run the program has each named variable, and it leads to a tensor of that size.

    Each op is on the named line and in the named module, and backward reads every reported activation.
    """
    name, program = ran
    oracle = question(program.prof, PATTERNS[name].file)
    monkeypatch.setattr(memwatch, "profile", oracle)
    again = run(name)
    assert oracle.has_looked
    assert oracle.false == []
    assert what_is_misplaced(program.prof, oracle.witness, paths_of(again.nets), is_view) == []


def test_findings_name_a_line_of_the_program(ran):
    """A finding is about something that its reader can edit."""
    name, program = ran
    file = PATTERNS[name].file
    assert [str(finding) for finding in program.prof.findings if not finding.site.startswith(file)] == []


def test_the_peak_is_that_of_a_plain_run(ran, monkeypatch):
    """The peak increase equals the bytes that the allocator hands out without memwatch."""
    name, program = ran
    count = AllocatorCount()
    monkeypatch.setattr(memwatch, "profile", count)
    run(name)
    assert program.prof.peak_increase_bytes == count.peak_increase_bytes
