"""A leak of a library is reported with its public thread; the same program with the remedy is silent."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from known_programs import PROGRAMS, WITHIN_ONE_CALL, replaced

import memwatch
from memwatch.kinds.edges import Edge, EdgeKind, Vertex, VertexKind
from memwatch.kinds.leaks import LeakKind
from memwatch.leaks import known_leaks
from memwatch.leaks.known_leaks import KNOWN_LEAKS, known_leak

DOCS = Path(__file__).parents[2] / "docs" / "concepts" / "leaks.md"


def entry_of(program):
    (entry,) = (each for each in KNOWN_LEAKS if each.link.endswith("/" + program.link))
    return entry


@pytest.fixture
def versions(monkeypatch):
    """The version of each library that a module stands for; others are installed."""
    real, pretended = known_leaks._version, {}
    monkeypatch.setattr(known_leaks, "_version", lambda library: pretended.get(library) or real(library))
    return pretended


@pytest.fixture(autouse=True)
def libraries_after():
    yield
    for name, module in replaced.items():
        del sys.modules[name]
        if module is not None:
            sys.modules[name] = module
    replaced.clear()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_leak_of_a_library_has_the_link_of_its_thread_and_the_remedy_ends_it(name, versions):
    """The holder is still named: the line of the library that keeps the tensors. Its fixed version is not accused."""
    program = PROGRAMS[name]
    entry = entry_of(program)
    if program.library:
        pytest.importorskip(program.library)
    else:
        versions[entry.library] = entry.seen_in
    leaks = memwatch.find_leaks(program.make(mended=False))
    assert leaks
    assert any(program.holder in leak.holder for leak in leaks), str(leaks[0])
    for leak in leaks:
        assert leak.known is entry, str(leak)
        assert f"known leak of {entry.library}: {entry.what} ({entry.link})" in str(leak)
        if entry.remedy:
            assert leak.advice == entry.remedy
        if entry.fixed_in:
            versions[entry.library] = entry.fixed_in
            assert known_leak(leak.kind, leak.edges) is None
    assert memwatch.find_leaks(program.make(mended=True)) == []


@pytest.mark.parametrize("name", WITHIN_ONE_CALL)
def test_memory_that_a_library_keeps_within_one_call_has_the_link_too(name, versions):
    """No call leaks. A recording of one call has a finding, which is what a test with `no_findings` reports."""
    program = WITHIN_ONE_CALL[name]
    entry = entry_of(program)
    versions[entry.library] = entry.seen_in
    found = {}
    for mended in (False, True):
        run = program.make(mended=mended)
        run()
        with memwatch.profile() as prof:
            run()
        found[mended] = [str(each) for each in prof.findings if entry.link in str(each)]
    (text,) = found[False]
    assert program.holder in text
    assert f"; known leak of {entry.library}: {entry.what} ({entry.link}). If it is one here, " in text
    assert found[True] == []


def row_of(entry):
    """Return the beginning of an entry's row in the docs."""
    versions = entry.seen_in + (f", fixed in {entry.fixed_in}" if entry.fixed_in else "")
    return f"| {entry.library} | {entry.what[0].upper()}{entry.what[1:]}. | {versions} |"


def test_every_entry_has_a_program_and_a_row_in_the_docs():
    programs = {**PROGRAMS, **WITHIN_ONE_CALL}.values()
    assert {entry_of(each).link for each in programs} == {each.link for each in KNOWN_LEAKS}
    rows = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if "<https://github.com/" in line]
    assert len(rows) == len(KNOWN_LEAKS)
    for entry in KNOWN_LEAKS:
        assert [row for row in rows if row.startswith(row_of(entry)) and f"<{entry.link}>" in row], row_of(
            entry
        )


def test_a_leak_of_the_program_itself_is_not_called_a_librarys():
    """A list of the program, and a class of its own with an attribute of the same name."""
    kept = []
    (leak,) = memwatch.find_leaks(lambda: kept.append(torch.ones(4096)))
    assert leak.known is None
    assert "known leak" not in str(leak)

    class Accelerator:
        def __init__(self):
            self._models = []

    mine = Accelerator()
    (leak,) = memwatch.find_leaks(lambda: mine._models.append(torch.nn.Linear(64, 64)))
    assert leak.known is None


def test_a_version_with_the_fix_is_not_accused(monkeypatch):
    """Versions are compared by their numbers: 0.10 is later than 0.9."""
    entry = dataclasses.replace(KNOWN_LEAKS[0], fixed_in="0.10")
    assert entry.affects("0.9.1")
    assert not entry.affects("0.10")
    assert not entry.affects("1.2.3+local")
    owner = Vertex(VertexKind.OBJECT, "Accelerator")
    edge = Edge(EdgeKind.ATTRIBUTE, "_models", owner=owner, file="/x/accelerate/accelerator.py", line=1)
    assert known_leak(LeakKind.RETAINED, [edge]) is KNOWN_LEAKS[0]
    monkeypatch.setattr("memwatch.leaks.known_leaks.KNOWN_LEAKS", (entry,))
    monkeypatch.setattr("memwatch.leaks.known_leaks._version", lambda library: "0.10")
    assert known_leak(LeakKind.RETAINED, [edge]) is None
