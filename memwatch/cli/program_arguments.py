"""The arguments that name a program, in the form of `python`; words after the name are the program's own."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from memwatch.cli.program import Form, Program
from memwatch.settings import own_code_folders, project_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM_USAGE: Final = "[-m MODULE | -c COMMAND | SCRIPT] [ARGUMENT ...]"
_PAGE: Final = "--html="


def add_program(parser: argparse.ArgumentParser) -> None:
    """Add `-m`, `-c`, and the program with its arguments."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "-m", dest="module", action="store_true", help="the program is a module, found as by an import"
    )
    form.add_argument("-c", dest="command", action="store_true", help="the program is the text of a command")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the program and its arguments")


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Return the parsed command line.

    `--html` takes a value only after `=`, because the next word may be the program. argparse has no such option:
    it would take the next word as the value. So argparse sees a flag, and the value is found here.
    """
    words = [_PAGE[:-1] if word.startswith(_PAGE) else word for word in argv]
    options, unknown = parser.parse_known_args(words)
    if unknown:  # told by the verb, whose usage has the options that there are
        options.usage_error(f"unrecognized arguments: {' '.join(unknown)}")
    if hasattr(options, "program"):
        first = len(argv) - len(options.program)
        options.program = list(argv[first:])
        pages = [word.removeprefix(_PAGE) for word in argv[:first] if word.startswith(_PAGE)]
        options.page = pages[-1] if pages else None
    return options


def chosen_program(options: argparse.Namespace) -> Program:
    """Return the program that was named; exit with a usage error if there is none.

    Raises:
        SettingsError: the settings of the project are wrong, which stops every verb that runs a program.
    """
    project_settings()
    own_code_folders()  # now, because the program may change the working directory
    words = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not words:
        options.usage_error("name a program: SCRIPT, -m MODULE or -c COMMAND")
    form: Form = "module" if options.module else "command" if options.command else "script"
    return Program(form, words[0], tuple(words[1:]))
