"""Every word as true as the bytes, of programs that use accelerate."""

from __future__ import annotations

import pytest

pytest.importorskip("accelerate")

import patterns_accelerate
from truth_checks import (
    programs_of,
    test_a_second_run_shows_the_same,  # noqa: F401
    test_findings_name_a_line_of_the_program,  # noqa: F401
    test_the_peak_is_that_of_a_plain_run,  # noqa: F401
    test_what_is_said_of_the_peak_is_true,  # noqa: F401
)

PROGRAMS = programs_of(patterns_accelerate)
