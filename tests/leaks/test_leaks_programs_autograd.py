"""Every leak program of autograd and of frameworks is found with its kind and holder; every clean twin is silent."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import programs_autograd
import programs_facts
import programs_frameworks
from all_programs import lean
from program_checks import both_for

PROGRAMS = lean([*programs_autograd.PROGRAMS, *programs_facts.PROGRAMS, *programs_frameworks.PROGRAMS])

test_a_leak_is_found_with_its_kind_and_references, test_the_clean_twin_is_silent = both_for(PROGRAMS)
