"""Every leak program with its clean twin."""

from __future__ import annotations

import programs_autograd
import programs_data
import programs_facts
import programs_frameworks
import programs_idioms
import programs_objects
import programs_python
import programs_recipes
import programs_services
import programs_training

MODULES = (
    programs_autograd,
    programs_data,
    programs_facts,
    programs_frameworks,
    programs_idioms,
    programs_objects,
    programs_python,
    programs_recipes,
    programs_services,
    programs_training,
)
PROGRAMS = [program for module in MODULES for program in module.PROGRAMS]
