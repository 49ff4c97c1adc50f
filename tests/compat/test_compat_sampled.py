"""Programs that do not notice that memwatch takes a holder sample after every op.

`python reports/sampled_programs.py` runs every program in every way; here each program that is run is run in one way.
"""

from __future__ import annotations

import gc

import pytest
from compat_harness import INTERCEPTS, check_sampled
from compat_programs import all_programs

EVERY = 6
PROGRAMS = [
    (each, INTERCEPTS[number % len(INTERCEPTS)]) for number, each in enumerate(list(all_programs())[::EVERY])
]


@pytest.fixture(autouse=True)
def _nothing_is_frozen():
    """A deep search sees all objects of the process, as it does for a user."""
    gc.unfreeze()


@pytest.mark.parametrize(
    ("each", "intercept"),
    PROGRAMS,
    ids=[f"{each.name}-{way}" for each, way in PROGRAMS],
    indirect=["intercept"],
)
def test_a_program_is_bit_equal_with_a_sample_after_every_op(each, intercept):
    check_sampled(each.program, intercept, formula=each.formula)
