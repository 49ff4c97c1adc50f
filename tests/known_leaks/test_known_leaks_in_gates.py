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

@pytest.mark.parametrize("number", range({tests}))
{marker}
def test_leaking(number):
    leaking()

@pytest.mark.parametrize("number", range({tests}))
{marker}
def test_mended(number):
    mended()
"""
MARKED, EVERY = "marked", "all"
"""The gates: the marker of a test, and the option that checks every test.

One run of a test does not show that memory grows. So with the option, the program runs in several tests.
"""
LIKE_CACHES = ("loaders", "transformers")
"""The programs whose leak one run cannot show.

Of the loaders, one slot has the newest and is the shortest path to it. The next run fills it again, so memwatch
lists it as kept. The `lru_cache` of transformers has a limit of its author, so a check of one run reports no entry.
"""
_TESTS = 5


@pytest.fixture(autouse=True, scope="session")
def _imports():
    """Import what inner sessions import, because pytester makes them forget it."""
    import networkx  # noqa: F401

    memwatch.find_leaks(lambda: None)
    with memwatch.profile():
        pass


@pytest.fixture(autouse=True)
def _imports_of_program(name):
    """Import what a program imports, before pytester notes the modules that the process keeps."""
    program = {**PROGRAMS, **WITHIN_ONE_CALL}[name]
    if program.library:
        pytest.importorskip(program.library)
    program.make(mended=True)()
    yield
    forget_stand_ins()  # after pytester, which brings back the modules that it noted


@pytest.fixture
def tests_of(pytester, monkeypatch):
    """Run a known leak and its corrected twin as tests, and return the results of both: ``(leaking, mended)``."""

    def run(name, *options, marker="", tests=1):
        program = {**PROGRAMS, **WITHIN_ONE_CALL}[name]
        entry = entry_of(program)
        pretended = {} if program.library else {entry.library: entry.seen_in}
        real = known_leaks._version
        monkeypatch.setattr(known_leaks, "_version", lambda library: pretended.get(library) or real(library))
        pytester.makepyfile(test_known=SUITE.format(name=name, marker=marker, tests=tests))
        pytester.makeini(
            "[pytest]\naddopts = -p no:timeout -p no:anyio -p no:benchmark -p no:hypothesispytest\n"
        )
        pytester.runpytest("--memwatch-json=out.json", *options)
        rows = json.loads((pytester.path / "out.json").read_text())["tests"]
        assert len(rows) == 2 * tests
        return [
            [row for row in rows if f"::{test}[" in row["nodeid"]] for test in ("test_leaking", "test_mended")
        ]

    return run


@pytest.mark.parametrize(
    ("name", "gate"),
    [
        *((name, MARKED) for name in PROGRAMS),
        *((name, EVERY) for name in PROGRAMS if name not in LIKE_CACHES),
    ],
)
def test_a_gate_names_a_known_leak_and_passes_the_program_with_the_remedy(name, gate, tests_of):
    if gate == MARKED:
        leaking, mended = tests_of(name, marker="@pytest.mark.no_tensor_leaks")
    else:
        leaking, mended = tests_of(name, "--memwatch-leaks=all", tests=_TESTS)
    program = PROGRAMS[name]
    leaks = [leak for row in leaking for leak in row["leaks"]]
    assert "leak" in [row["failed"] for row in leaking]
    assert any(program.holder in leak["holder"] for leak in leaks), leaks
    assert {leak["known"] and leak["known"]["link"] for leak in leaks} == {entry_of(program).link}
    assert [(row["failed"], row["outcome"]) for row in mended] == [(None, "passed")] * len(mended)


@pytest.mark.parametrize("name", WITHIN_ONE_CALL)
def test_a_gate_names_what_a_library_keeps_within_one_call_and_passes_the_remedy(name, tests_of):
    [leaking], [mended] = tests_of(name, marker='@pytest.mark.no_findings("64 KiB", ["graph"])')
    program = WITHIN_ONE_CALL[name]
    assert leaking["failed"] == "findings"
    assert any(program.holder in each["holder"] for each in leaking["findings"]), leaking["findings"]
    assert any(entry_of(program).link in each["advice"] for each in leaking["findings"])
    assert (mended["failed"], mended["outcome"]) == (None, "passed")
