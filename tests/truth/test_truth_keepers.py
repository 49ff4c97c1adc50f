"""Every word as true as the bytes where a program keeps memory: data, caches, roles that end, objects of all kinds."""

from __future__ import annotations

import patterns_by_hand
import patterns_data
import patterns_fetching
import patterns_generation
import patterns_keepers
import patterns_kept
import patterns_numbers
import patterns_python
import patterns_references
import patterns_roles
import patterns_structures
import patterns_weights
from truth_checks import (
    programs_of,
    test_a_variable_that_is_named_holds_the_memory,  # noqa: F401
    test_findings_name_a_line_of_the_program,  # noqa: F401
    test_what_is_said_of_the_peak_is_true,  # noqa: F401
)

PROGRAMS = programs_of(
    patterns_by_hand,
    patterns_data,
    patterns_fetching,
    patterns_generation,
    patterns_keepers,
    patterns_kept,
    patterns_numbers,
    patterns_python,
    patterns_references,
    patterns_roles,
    patterns_structures,
    patterns_weights,
)
