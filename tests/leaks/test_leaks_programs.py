"""Every leak program is found with its kind and holder; every clean twin is silent."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from scrambled_words import VARIABLE

from memwatch.leaks import find_leaks
from memwatch.words.advice import Remedy, advice

sys.path.insert(0, str(Path(__file__).parent))
from all_programs import PROGRAMS
from expected_references import EXPECTED


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_a_leak_is_found_with_its_kind_and_references(program):
    """The largest leak has the program's kind, its path the references, and its holder the words a person needs."""
    leaks = find_leaks(program.leak)
    assert leaks, "no leak was found"
    first = leaks[0]
    assert first.kind == program.kind, str(first)
    named = [(edge.kind, edge.name) for edge in first.edges]
    missing = [(kind, name) for kind, name in EXPECTED[program.name] if not _names(named, kind, name)]
    assert not missing, f"{missing} not in {named}"
    if VARIABLE not in os.environ:
        unsaid = [word for word in program.words if word not in first.holder]
        assert not unsaid, f"{unsaid} not in holder of {first}"
    assert first.nbytes > 0
    assert first.site is not None
    assert Path(sys.modules[program.leak.__module__].__file__).name in first.site, str(first)
    assert first.advice != advice(Remedy.ANY), str(first)


def _names(named, kind, name):
    return any(kind is other and name in (None, its_name) for other, its_name in named)


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_the_clean_twin_is_silent(program):
    """With the one reference cut, nothing is reported."""
    assert [str(leak) for leak in find_leaks(program.clean)] == []
