"""The entry of the command line: run a verb, and print an error as one line."""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from memwatch._version import __version__
from memwatch.cli.program import parse
from memwatch.errors import MemwatchError, OptionError
from memwatch.text import visible

VERBS: Final = (
    "run", "attach", "report", "summary", "stats", "tree", "diff", "merge", "leaks", "plan", "replay", "fit",
    "estimate", "tune", "transform", "import", "live", "ps", "mcp", "skill", "build",
)  # fmt: skip
"""The verbs in the order of the help; each is a module or a class here with `add_arguments` and `execute`."""

_CLASSES: Final = {
    "attach": "processes.Attach",
    "diff": "captures.Diff",
    "estimate": "beginnings.Estimate",
    "fit": "beginnings.Fit",
    "import": "captures.Import",
    "live": "captures.Live",
    "mcp": "assistants.Mcp",
    "merge": "captures.Merge",
    "plan": "plans.Plan",
    "ps": "processes.Ps",
    "replay": "plans.Replay",
    "report": "captures.Report",
    "skill": "assistants.Skill",
    "stats": "captures.Stats",
    "summary": "captures.Summary",
    "transform": "captures.Transform",
    "tree": "captures.Tree",
    "tune": "plans.Tune",
}
"""The verbs that share modules: each is a class with these two functions."""

_FIRST_HELP: Final = """\
memwatch: find the memory peak of a PyTorch program, who holds it, and how low
it could be.

    memwatch run train.py      record a program into a file, the CAPTURE
    memwatch summary CAPTURE   print the peak by category, line and holder
    memwatch report CAPTURE    write a page for the browser
    memwatch leaks train.py    find tensors that a program leaves behind
    memwatch plan CAPTURE      find how low the peak can be

Begin with `memwatch run` and your own script. It prints the next command to
type. `memwatch --help` lists all verbs. `memwatch run --help` explains one.
"""
"""The text that `memwatch` without a verb prints. A line fits 80 columns."""

_BRACKETS: Final = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]")
"""An option in a usage line. Lines are not broken inside an option."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help in lines as wide as the terminal; examples, which are indented, stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            part if part.startswith(" ") else textwrap.fill(" ".join(part.split()), width)
            for part in text.split("\n\n")
        )

    def _format_usage(self, usage: str | None, *arguments: Any) -> str:
        text = super()._format_usage(usage, *arguments)
        if usage is None:
            return text
        whole = _BRACKETS.sub(lambda option: option[0].replace(" ", "\0"), text.strip())
        lines = textwrap.fill(
            whole, self._width, subsequent_indent=" " * len("usage: "), break_on_hyphens=False
        )
        return lines.replace("\0", " ") + "\n\n"


_REQUIRED: Final = re.compile("the following arguments are required: (.+)")
_HOW_TO_GIVE: Final = {
    "capture": "name a capture, the file that `memwatch run SCRIPT` writes",
    "capture, format": "name a capture and a format, as `memwatch transform train.4242.memwatch csv`",
    "captures": "name captures, as `memwatch merge train.rank*.memwatch`",
    "format": "name a format behind the capture, such as csv",
    "new": "name a second capture, to compare the first one with",
    "old, new": "name two captures, the old one first",
    "PID": "give the number of a process; `memwatch ps` lists them",
    "snapshot": "name a memory snapshot that torch wrote, such as dump_snapshot.pickle",
    "source": "name a capture, or a memory snapshot that torch wrote",
    "--plan": "give --plan FILE; `memwatch plan CAPTURE -o FILE` writes the file",
}
"""What to type if an argument is missing, by the arguments that argparse names."""


class _Parser(argparse.ArgumentParser):
    """A parser whose error about a missing argument also says what to type."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, and exit with 2."""
        missing = _REQUIRED.fullmatch(message)
        hint = None if missing is None else _HOW_TO_GIVE.get(missing[1])
        super().error(message if hint is None else f"{message}; {hint}")


_VERB_OF_FILE: Final = {".py": "run", ".memwatch": "summary"}
"""The verb for a command that begins with a file, by the end of the file's name."""

Execute = Callable[[argparse.Namespace], "int | BaseException"]
"""Runs a verb. Returns the exit code or, for a verb that ran a program, the exception that the program raised."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Args:
        argv: the arguments; by default the process's own.

    Returns:
        0 fine, 1 a finding or bad input, 2 where no verb is given or an option means nothing. argparse exits with 2
        by itself where the command line is malformed.

    Raises:
        BaseException: the exception of a program that a verb ran, `SystemExit` included. The process then ends
            as it would have ended without memwatch.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments:
        sys.stderr.write(_FIRST_HELP)
        return 2
    meant = next((verb for suffix, verb in _VERB_OF_FILE.items() if arguments[0].endswith(suffix)), None)
    if meant is not None:
        words = visible(" ".join(arguments))
        sys.stderr.write(
            f"memwatch: error: {visible(arguments[0])} is a file; type memwatch {meant} {words}\n"
        )
        return 2
    if arguments[0] not in VERBS and not arguments[0].startswith("-"):
        import difflib  # no other command needs it

        meant = next(iter(difflib.get_close_matches(arguments[0], VERBS, 1)), None)
        hint = "" if meant is None else f"did you mean {meant}? "
        sys.stderr.write(
            f"memwatch: error: there is no verb {visible(arguments[0])}; {hint}`memwatch --help` lists all verbs\n"
        )
        return 2
    try:
        options = parse(_parser(arguments[0]), arguments)
        execute: Execute = options.execute
        ended = execute(options)
    except (MemwatchError, OSError) as error:
        text = str(error) if isinstance(error, MemwatchError) else _text_of(error)
        sys.stderr.write(f"memwatch: error: {visible(' '.join(text.split()))}\n")
        return 2 if isinstance(error, OptionError) else 1
    except KeyboardInterrupt:  # memwatch's own work was interrupted; an interrupted program is in `ended`
        sys.excepthook = _say_interrupted
        raise  # the process ends by the signal, so that a loop of the shell ends too
    if isinstance(ended, BaseException):
        raise ended
    return ended


def _text_of(error: OSError) -> str:
    """Return the text of an error of the system, or that the working directory is gone: that error names no file."""
    try:
        os.getcwd()
    except OSError:
        return "the working directory no longer exists; change to another one"
    return str(error)


_NEGATIVE: Final = re.compile(r"-\.?\d")
"""The beginning of a negative number, with or without a unit. Python 3.14 has this pattern itself."""


def _say_interrupted(*_: object) -> None:
    """Print one line in place of the traceback through memwatch's own code."""
    sys.stderr.write("memwatch: interrupted\n")


def _parser(first: str) -> argparse.ArgumentParser:
    """Return the parser of the command line.

    If the first word names a verb, the modules of the other verbs are not imported. Some need numpy, which starts
    threads, and `memwatch fit` must have only one thread when it asks the kernel for private files.
    """
    parser = _Parser(
        prog="memwatch",
        description=inspect.getdoc(importlib.import_module("memwatch.cli")),
        formatter_class=_Help,
        epilog="exit codes: 0 fine, 1 a finding or bad input, 2 wrong usage",
        allow_abbrev=False,
    )
    parser.add_argument("-V", "--version", action="version", version=f"memwatch {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in [first] if first in VERBS else VERBS:
        _add_verb(verbs, verb)
    return parser


def _add_verb(verbs: argparse._SubParsersAction[_Parser], verb: str) -> None:
    module, _, name = _CLASSES.get(verb, verb).partition(".")
    home: Any = importlib.import_module(f"memwatch.cli.{module}")
    if name:
        home = getattr(home, name)
    text = inspect.getdoc(home) or ""
    parser = verbs.add_parser(
        verb,
        help=text.splitlines()[0],
        description=text,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    home.add_arguments(parser)
    # without this, argparse takes the value in `--limit -5MiB` for an option and says that no value was given
    parser._negative_number_matcher = _NEGATIVE
    parser.set_defaults(execute=home.execute, usage_error=parser.error)
