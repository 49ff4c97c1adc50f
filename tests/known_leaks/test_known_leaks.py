"""A leak of a library is reported with its public thread; the same program with the remedy is silent."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from known_programs import PROGRAMS

import memwatch
from memwatch.kinds.edges import Edge, EdgeKind, Vertex, VertexKind
from memwatch.kinds.leaks import LeakKind
from memwatch.leaks.known_leaks import KNOWN_LEAKS, known_leak

DOCS = Path(__file__).parents[2] / "docs" / "concepts" / "leaks.md"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_leak_of_a_library_has_the_link_of_its_thread(name):
    """The holder is still named: the line of the library that keeps the tensors."""
    library, link, program = PROGRAMS[name]
    pytest.importorskip(library)
    leaks = memwatch.find_leaks(program(mended=False))
    assert leaks
    for leak in leaks:
        assert leak.known is not None, str(leak)
        assert leak.known.library == library
        assert leak.known.link.endswith(link)
        assert f"known leak of {library}: {leak.known.what} ({leak.known.link})" in str(leak)
        if leak.known.remedy:
            assert leak.advice == leak.known.remedy


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_remedy_ends_the_leak(name):
    library, _, program = PROGRAMS[name]
    pytest.importorskip(library)
    assert memwatch.find_leaks(program(mended=True)) == []


def test_every_entry_has_a_program_and_stands_in_the_docs():
    assert {each.link.partition("github.com/")[2].partition("/")[2] for each in KNOWN_LEAKS} == {
        link for _, link, _ in PROGRAMS.values()
    }
    text = DOCS.read_text(encoding="utf-8")
    assert all(each.link in text for each in KNOWN_LEAKS)


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
