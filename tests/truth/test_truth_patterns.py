"""Check what memwatch reports about programs in common styles against facts from the code of each program."""

from __future__ import annotations

import patterns_algorithms
import patterns_autograd
import patterns_frameworks
import patterns_learning
import patterns_methods
import patterns_models
import patterns_recompute
import patterns_training
import patterns_transforms
from truth_checks import (
    programs_of,
    test_a_variable_that_is_named_holds_the_memory,  # noqa: F401
    test_findings_name_a_line_of_the_program,  # noqa: F401
    test_what_is_said_of_the_peak_is_true,  # noqa: F401
)

PROGRAMS = programs_of(
    patterns_algorithms,
    patterns_autograd,
    patterns_frameworks,
    patterns_learning,
    patterns_methods,
    patterns_models,
    patterns_recompute,
    patterns_training,
    patterns_transforms,
)
