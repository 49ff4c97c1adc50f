"""All leak programs at once: further calls and one pass accuse the same causes, and every twin is silent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from memwatch.kinds.leaks import Remedy
from memwatch.leaks import TensorLeakError, check_leaks, find_leaks
from memwatch.words.leaks import advice

sys.path.insert(0, str(Path(__file__).parent))
import programs_callbacks
import programs_classes
import programs_idioms
import programs_keepers
import programs_recipes
import programs_windows
from all_programs import PROGRAMS
from expected_remedies import NAMES, OF_OBJECTS, REMEDIES

MODULES = (
    programs_callbacks,
    programs_classes,
    programs_idioms,
    programs_keepers,
    programs_recipes,
    programs_windows,
)
NEW = [program for module in MODULES for program in module.PROGRAMS]


def leaks_of_one_pass(fn):
    try:
        check_leaks()(fn)()
    except TensorLeakError as error:
        return error.leaks
    return []


def all_leaks():
    for program in PROGRAMS:
        program.leak()


def all_twins(programs=PROGRAMS):
    for program in programs:
        program.clean()


@pytest.fixture(scope="module")
def leaks():
    """Return the leaks of further calls of all programs, and the leaks of one pass."""
    torch.set_num_threads(1)
    all_leaks()  # so that every container is there
    return find_leaks(all_leaks, runs=2), leaks_of_one_pass(all_leaks)


def of(program, leaks):
    """Return the leaks of one program, found by the kinds and names that it expects."""
    file = Path(sys.modules[program.leak.__module__].__file__).name
    mine = [leak for leak in leaks if leak.kind == program.kind and file in str(leak)]
    return [leak for leak in mine if all(word in leak.holder for word in program.words)]


OF_ONE_PASS = {
    "hidden_state": Remedy.ATTRIBUTE,
    "wrapped_again": Remedy.ATTRIBUTE,
    "display_hook": Remedy.CLOSURE_CELL,
}


def of_one_pass(program):
    """One pass over a hidden state, or a chain of objects, shows the newest value, and not the earlier ones."""
    return OF_ONE_PASS.get(program.name, REMEDIES[program.name])


@pytest.mark.parametrize("program", NEW, ids=str)
def test_a_leak_is_told_with_its_holder_and_its_advice(program, leaks):
    """Amid all the others, by further calls and by one pass."""
    by_calls, by_pass = (of(program, found) for found in leaks)
    assert by_calls
    assert by_pass
    for told, remedy in ((by_calls, REMEDIES[program.name]), (by_pass, of_one_pass(program))):
        name = NAMES.get(program.name)
        wanted = [
            advice(remedy, with_graph=graph, name=name, of_objects=program.name in OF_OBJECTS)
            for graph in (False, True)
        ]
        assert any(leak.advice in wanted for leak in told), "\n".join(map(str, told))


def test_further_calls_and_one_pass_accuse_the_same_causes(leaks):
    """In the common pass, dropped memory of other programs excuses some.

    Those are accused in a pass of their own.
    """
    by_calls, by_pass = ({(leak.kind, leak.cause): leak for leak in found} for found in leaks)
    assert [str(by_pass[cause]) for cause in by_pass.keys() - by_calls.keys()] == []
    missing = {cause: by_calls[cause] for cause in by_calls.keys() - by_pass.keys()}
    programs = [program for program in PROGRAMS if of(program, missing.values())]
    told = {(leak.kind, leak.cause) for program in programs for leak in leaks_of_one_pass(program.leak)}
    untold = [leak for cause, leak in missing.items() if cause not in told]
    assert [program.name for program in programs if of(program, untold)] == []


def test_every_twin_is_silent_in_further_calls():
    """The twins that no other test calls again."""
    for _ in range(4):  # windows are full, and every value has one to replace
        all_twins(NEW)
    assert [str(leak) for leak in find_leaks(all_twins, NEW, runs=2)] == []


@pytest.mark.parametrize("programs", [PROGRAMS[first::4] for first in range(4)], ids=range(4))
def test_every_twin_is_silent_in_one_pass(programs):
    for _ in range(4):
        all_twins(programs)
    accused = {program.name: leaks_of_one_pass(program.clean) for program in programs}
    assert {name: list(map(str, found)) for name, found in accused.items() if found} == {}
