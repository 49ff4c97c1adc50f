"""Every leak program is found with its kind and holder; every clean twin is silent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from memwatch.leaks import find_leaks

sys.path.insert(0, str(Path(__file__).parent))
from all_programs import PROGRAMS


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_a_leak_is_found_with_its_kind_and_holder(program):
    """The largest leak has the program's kind, and its holder says the words a person needs."""
    leaks = find_leaks(program.leak)
    assert leaks, "no leak was found"
    first = leaks[0]
    assert first.kind == program.kind, str(first)
    missing = [word for word in program.words if word not in first.holder]
    assert not missing, f"{missing} not in holder of {first}"
    assert first.nbytes > 0
    assert first.site is not None
    assert Path(sys.modules[program.leak.__module__].__file__).name in first.site, str(first)
    assert first.advice != "cut this reference after the last use of the tensor", str(first)


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_the_clean_twin_is_silent(program):
    """With the one reference cut, nothing is reported."""
    assert [str(leak) for leak in find_leaks(program.clean)] == []
