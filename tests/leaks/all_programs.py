"""Every leak program with its clean twin."""

from __future__ import annotations

import programs_autograd
import programs_callbacks
import programs_classes
import programs_data
import programs_facts
import programs_frameworks
import programs_idioms
import programs_keepers
import programs_objects
import programs_python
import programs_recipes
import programs_services
import programs_training
import programs_windows

MODULES = (
    programs_autograd,
    programs_callbacks,
    programs_classes,
    programs_data,
    programs_facts,
    programs_frameworks,
    programs_idioms,
    programs_keepers,
    programs_objects,
    programs_python,
    programs_recipes,
    programs_services,
    programs_training,
    programs_windows,
)
PROGRAMS = [program for module in MODULES for program in module.PROGRAMS]
IMPORT_MUCH = {"data_frame", "escape_from_vmap", "optimizer_in_backward"}
"""Programs that import pandas or torch's compiler; each search of the heap takes twice as long from then on."""


def lean(programs):
    """Return the programs that import little, which are to run before the others."""
    return [program for program in programs if program.name not in IMPORT_MUCH]
