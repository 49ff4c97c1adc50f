"""Every word as true as the bytes: real programs, whose truth is known by construction, against what is said."""

from __future__ import annotations

import patterns_autograd
import patterns_data
import patterns_frameworks
import patterns_generation
import patterns_keepers
import patterns_methods
import patterns_models
import patterns_python
import patterns_recompute
import patterns_roles
import patterns_structures
import patterns_training
import patterns_transforms
import patterns_weights
from truth_checks import (
    programs_of,
    test_a_variable_that_is_named_holds_the_memory,  # noqa: F401
    test_findings_name_a_line_of_the_program,  # noqa: F401
    test_what_is_said_of_the_peak_is_true,  # noqa: F401
)

PROGRAMS = programs_of(
    patterns_autograd, patterns_data, patterns_frameworks, patterns_generation, patterns_keepers, patterns_methods,
    patterns_models, patterns_python, patterns_recompute, patterns_roles, patterns_structures, patterns_training,
    patterns_transforms, patterns_weights,
)  # fmt: skip
