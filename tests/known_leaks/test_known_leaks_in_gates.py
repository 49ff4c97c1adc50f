"""The gates of the pytest plugin name each known leak of a library, and pass the same program with the remedy."""

from __future__ import annotations

import json

import pytest
from known_programs import PROGRAMS, WITHIN_ONE_CALL, entry_of, forget_stand_ins

import memwatch
from memwatch.kinds import known_leaks

SUITE = """
import pytest
from known_programs import PROGRAMS, WITHIN_ONE_CALL

make = {{**PROGRAMS, **WITHIN_ONE_CALL}}[{name!r}].make
leaking, mended = make(mended=False), make(mended=True)

{marker}
def test_leaking():
    {block}leaking()

{marker}
def test_mended():
    {block}mended()
"""
GATES = {
    "marker": ("@pytest.mark.no_tensor_leaks", "", ()),
    "every test": ("", "", ("--memwatch-leaks=all",)),
}


@pytest.fixture(autouse=True, scope="session")
def _imports():
    """Import what inner sessions import, because pytester makes them forget it."""
    import networkx  # noqa: F401

    memwatch.find_leaks(lambda: None)
    with memwatch.profile():
        pass


@pytest.fixture
def tests_of(pytester, monkeypatch):
    """Run a known leak and its corrected twin as two tests, and return the results of both."""

    def run(name, marker, block, options):
        program = {**PROGRAMS, **WITHIN_ONE_CALL}[name]
        entry = entry_of(program)
        if program.library:
            pytest.importorskip(program.library)
        real = known_leaks._version
        pretended = {} if program.library else {entry.library: entry.seen_in}
        monkeypatch.setattr(
            known_leaks, "_version", lambda library: pretended.get(library) or real(library)
        )
        pytester.makepyfile(test_known=SUITE.format(name=name, marker=marker, block=block))
        pytester.makeini("[pytest]\naddopts = -p no:timeout -p no:anyio -p no:benchmark -p no:hypothesispytest\n")
        pytester.runpytest("--memwatch-json=out.json", *options)
        tests = json.loads((pytester.path / "out.json").read_text())["tests"]
        return {row["nodeid"].partition("::")[2]: row for row in tests}

    yield run
    forget_stand_ins()


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_gate_names_a_known_leak_and_passes_the_program_with_the_remedy(name, gate, tests_of):
    tests = tests_of(name, *GATES[gate])
    program = PROGRAMS[name]
    leaks = tests["test_leaking"]["leaks"]
    assert tests["test_leaking"]["failed"] == "leak"
    assert any(program.holder in leak["holder"] for leak in leaks), leaks
    assert {leak["known"] and leak["known"]["link"] for leak in leaks} == {entry_of(program).link}
    assert tests["test_mended"]["failed"] is None, tests["test_mended"]
    assert tests["test_mended"]["outcome"] == "passed"


@pytest.mark.parametrize("name", WITHIN_ONE_CALL)
def test_a_gate_names_what_a_library_keeps_within_one_call_and_passes_the_remedy(name, tests_of):
    tests = tests_of(name, '@pytest.mark.no_findings(min_bytes="64 KiB")', "", ())
    program = WITHIN_ONE_CALL[name]
    findings = tests["test_leaking"]["findings"]
    assert tests["test_leaking"]["failed"] == "findings"
    assert any(program.holder in each["holder"] for each in findings), findings
    assert any(entry_of(program).link in each["advice"] for each in findings)
    assert tests["test_mended"]["outcome"] == "passed"
