"""A leak of a library is reported with its public thread; the same program with the remedy is silent."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from known_programs import PROGRAMS, WITHIN_ONE_CALL, entry_of, forget_stand_ins, stand_in

import memwatch
from memwatch.kinds import known_leaks
from memwatch.kinds.edges import Edge, EdgeKind, Vertex, VertexKind
from memwatch.kinds.known_leaks import KNOWN_LEAKS, known_leak
from memwatch.kinds.leaks import LeakKind

DOCS = Path(__file__).parents[2] / "docs" / "concepts" / "leaks.md"


@pytest.fixture
def versions(monkeypatch):
    """The version of each library that a module stands for; others are installed."""
    real, pretended = known_leaks._version, {}
    monkeypatch.setattr(known_leaks, "_version", lambda library: pretended.get(library) or real(library))
    return pretended


@pytest.fixture(autouse=True)
def libraries_after():
    yield
    forget_stand_ins()


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
    """Return the beginning of an entry's row in the docs, without the marks of code."""
    versions = entry.seen_in + (f", fixed in {entry.fixed_in}" if entry.fixed_in else "")
    return f"| {entry.library} | {entry.what}. | {versions} |"


def test_every_entry_has_a_program_and_a_row_in_the_docs():
    programs = {**PROGRAMS, **WITHIN_ONE_CALL}.values()
    assert {entry_of(each).link for each in programs} == {each.link for each in KNOWN_LEAKS}
    text = DOCS.read_text(encoding="utf-8").replace("`", "").lower()
    rows = [line for line in text.splitlines() if "<https://github.com/" in line]
    assert len(rows) == len(KNOWN_LEAKS)
    for entry in KNOWN_LEAKS:
        start, end = row_of(entry).lower(), f"<{entry.link.lower()}> |"
        assert [row for row in rows if row.startswith(start) and row.endswith(end)], start


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

    # a program in a folder with the name of a library
    owner = Vertex(VertexKind.OBJECT, "Run")
    kept_in_run = Edge(EdgeKind.ATTRIBUTE, "log", owner=owner, file="/me/torchmetrics/train.py", line=1)
    assert known_leak(LeakKind.RETAINED, [kept_in_run, Edge(EdgeKind.ITEM)]) is None


def test_a_library_is_not_accused_of_what_the_program_does_with_its_objects(versions):
    """A list of the program keeps them, or a function of the program refers to them."""
    versions.update({"torchvision": "0.4.2", "pytorch-ignite": "0.5.2"})
    vision = stand_in("torchvision/models/detection/rpn.py", mended=False)
    kept = []

    def detect():
        kept.append(vision.AnchorGenerator())
        kept[-1](torch.zeros(1, 8, 64, 32))

    (leak,) = memwatch.find_leaks(detect)
    assert "AnchorGenerator" in leak.holder
    assert leak.known is None
    with memwatch.profile() as prof:
        for _ in range(8):
            detect()
    assert not any("known leak" in str(each) for each in prof.findings)

    ignite = stand_in("ignite/engine/engine.py", mended=True)

    def fit():
        weights = torch.ones(4096)
        trainer = ignite.Engine(lambda engine, batch: weights)
        trainer.add_event_handler("completed", lambda engine: trainer)

    (leak,) = memwatch.find_leaks(fit)
    assert leak.kind == LeakKind.CYCLE
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
    monkeypatch.setattr("memwatch.kinds.known_leaks.KNOWN_LEAKS", (entry,))
    monkeypatch.setattr("memwatch.kinds.known_leaks._version", lambda library: "0.10")
    assert known_leak(LeakKind.RETAINED, [edge]) is None
