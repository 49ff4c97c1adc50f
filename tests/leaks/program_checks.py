"""The two tests of every leak program: its leak is found, and its clean twin is silent."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from expected_references import EXPECTED
from expected_remedies import NAMES, OF_OBJECTS, REMEDIES
from scrambled_words import VARIABLE

from memwatch.leaks import find_leaks
from memwatch.words.leaks import advice

if TYPE_CHECKING:
    from leak_program import Program


def both_for(programs: list[Program]):
    """Return the two tests, for a module of tests to have under these names."""

    @pytest.mark.parametrize("program", programs, ids=str)
    def test_a_leak_is_found_with_its_kind_and_references(program):
        """The largest leak has the program's kind, its path the references, and its holder the words a person needs."""
        torch.set_num_threads(1)
        leaks = find_leaks(program.leak)
        assert leaks, "no leak was found"
        first = leaks[0]
        assert first.kind == program.kind, str(first)
        named = [(edge.kind, edge.name) for edge in first.edges]
        missing = [(kind, name) for kind, name in EXPECTED[program.name] if not _is_named(named, kind, name)]
        assert not missing, f"{missing} not in {named}"
        if VARIABLE not in os.environ:
            unsaid = [word for word in program.words if word not in first.holder]
            assert not unsaid, f"{unsaid} not in holder of {first}"
        assert first.nbytes > 0
        assert first.site is not None
        assert Path(sys.modules[program.leak.__module__].__file__).name in first.site, str(first)
        remedy = REMEDIES[program.name]
        name = NAMES.get(program.name)
        wanted = [
            advice(remedy, with_graph=graph, name=name, of_objects=program.name in OF_OBJECTS)
            for graph in (False, True)
        ]
        assert first.advice in wanted, str(first)

    @pytest.mark.parametrize("program", programs, ids=str)
    def test_the_clean_twin_is_silent(program):
        """With the one reference cut, nothing is reported."""
        torch.set_num_threads(1)
        assert [str(leak) for leak in find_leaks(program.clean)] == []

    return test_a_leak_is_found_with_its_kind_and_references, test_the_clean_twin_is_silent


def _is_named(named, kind, name):
    return any(kind is other and name in (None, its_name) for other, its_name in named)
