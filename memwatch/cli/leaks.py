"""Run a program and report the tensors that it leaves behind.

A tensor counts as leaked if only a reference cycle keeps it, if the garbage collector can never free it, or if
something other than a top-level name of the program still holds it. A holder that keeps the tensor and graph of every
optimizer step is a leak too. memwatch searches for these after steps 6, 12, 24 and so on. If there are leaks, the exit
code is 1. A program that fails ends as it would without memwatch.

    memwatch leaks train.py --epochs 1
    memwatch leaks -m package.train
"""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Final

from memwatch.cli.output import emit, say
from memwatch.cli.program import hide_own_frames
from memwatch.cli.program_arguments import PROGRAM_USAGE, add_program, chosen_program
from memwatch.settings import FILE, project_settings
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    import argparse

    from memwatch.leaks import Leak
    from memwatch.settings import Settings

_NONE: Final = (
    "no leaks: only top-level names, models and optimizers hold what the run made; "
    "what grows in them is found by memwatch.find_leaks(step)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.usage = f"memwatch leaks {PROGRAM_USAGE}"
    add_program(parser)


def execute(options: argparse.Namespace) -> int | BaseException:
    """Run the program and print its leaks; return 1 if there are any, or the exception of the program."""
    # imported first: the program's folder comes first in sys.path later, and may hold modules of the same name
    from memwatch.leaks import TensorLeakError, check_leaks
    from memwatch.report.console import line_width
    from memwatch.words.leaks import GREW_BY_STEP

    found: list[Leak] = []
    program, settings = chosen_program(options), project_settings()  # the program may change the folder
    try:
        run = program.load()
    except SyntaxError as error:
        return hide_own_frames(error)
    try:
        with check_leaks() as check:
            steps = check.follow_steps()
            try:
                run()
            except SystemExit as error:
                if error.code not in {None, 0}:
                    return error
            finally:
                steps.stop()
            names = vars(sys.modules["__main__"])
            check._blocks[-1].exempt.globals |= {(id(names), name) for name in names}
    except TensorLeakError as error:
        found = error.leaks
    except BaseException as error:
        return hide_own_frames(error)
    told = {leak.cause for leak in found}
    found = _counted(found, settings)
    growing = _counted([leak for leak in steps.leaks if leak.cause not in told], settings)
    parts = [str(TensorLeakError(found))] if found else []
    if growing:
        parts.append("\n".join([GREW_BY_STEP, *map(str, growing)]))
    if not parts:
        if not told and not steps.leaks:
            say(_NONE)
        return 0
    emit(_wrapped("\n".join(parts), line_width(None)))
    return 1


def _counted(leaks: list[Leak], settings: Settings) -> list[Leak]:
    """Return the leaks that the settings do not ignore, and print how many they ignore and why."""
    from memwatch.leaks.ignoring import matches

    smallest_bytes = settings.get("limits.leak") or 0
    counted = []
    ignored: dict[str, list[Leak]] = {}
    for leak in leaks:
        rules = (
            f"{pattern}: {reason}"
            for pattern, reason in settings.ignore_leaks.items()
            if matches(leak, pattern)
        )
        rule = next(rules, None)
        if rule is None and leak.nbytes < smallest_bytes:
            rule = f"smaller than {format_bytes(smallest_bytes)}"
        if rule is None:
            counted.append(leak)
        else:
            ignored.setdefault(rule, []).append(leak)
    for rule, covered in ignored.items():
        nbytes = format_bytes(sum(leak.nbytes for leak in covered))
        say(f"ignored {len(covered)} leak{'s'[: len(covered) != 1]} of {nbytes}, as {FILE} asks ({rule})")
    return counted


def _wrapped(text: str, width: int) -> str:
    """Return lines that fit; what is left of one stands below it, further in."""
    lines = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        fitting = textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        lines += fitting or [""]
    return "\n".join(lines) + "\n"
