"""Programs that look suspicious and are not: no finding, by either question."""

from __future__ import annotations

import subprocess
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
    """What a decorated function returns, and living models' state, is no leak, on the first call either."""
    check_leaks()(program)()


FIRST_STEP = """
import torch
from memwatch.leaks import check_leaks
def first_step():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
FIRST_CHECKPOINT = """
import torch
from memwatch.leaks import check_leaks
from torch.utils.checkpoint import checkpoint
def first_step():
    checkpoint(torch.nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True), use_reentrant=False)
"""


@pytest.mark.parametrize("program", [FIRST_STEP, FIRST_CHECKPOINT], ids=["optimizer", "checkpoint"])
def test_the_first_call_of_a_process_is_not_blamed_for_torchs_imports(program):
    """A lazy import of torch ties up the frames above it once; that cycle is nobody's leak."""
    checked = f"{program}\nwith check_leaks():\n    first_step()\n"
    done = subprocess.run(
        [sys.executable, "-c", checked], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_watching_imports_no_compiler():
    """A check does not load torch._dynamo into a process that does not use it."""
    code = (
        "import sys, torch\nfrom memwatch.leaks import check_leaks\nwith check_leaks(): torch.ones(3) + 1\n"
    )
    asked = code + "sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], timeout=120, check=False).returncode == 0
