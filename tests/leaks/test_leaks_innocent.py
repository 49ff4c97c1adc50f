"""Programs that look suspicious and are not: no finding, by either question."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from memwatch.leaks import check_leaks, find_leaks

sys.path.insert(0, str(Path(__file__).parent))
from programs_innocent import INNOCENT, PARKS_ONCE


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("program", INNOCENT + PARKS_ONCE, ids=lambda fn: fn.__name__)
def test_no_further_call_adds_anything(program):
    """Growth is what find_leaks reports, and there is none."""
    assert [str(leak) for leak in find_leaks(program)] == []


@pytest.mark.parametrize("program", INNOCENT, ids=lambda fn: fn.__name__)
def test_one_pass_leaves_nothing_behind(program):
    """What a decorated function returns, and living models' state, is nobody's leak; the first call

    FIXME included."""
    check_leaks()(program)()
