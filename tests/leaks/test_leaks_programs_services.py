"""Every leak program of services and data code is found with its kind and holder; every clean twin is silent."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import programs_data
import programs_services
from all_programs import lean
from program_checks import both_for

PROGRAMS = lean([*programs_data.PROGRAMS, *programs_services.PROGRAMS])

test_a_leak_is_found_with_its_kind_and_references, test_the_clean_twin_is_silent = both_for(PROGRAMS)
