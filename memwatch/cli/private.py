"""Keep the user's files as they are while `fit` and `estimate` run the beginning of a script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch.cli.common import say
from memwatch.cli.program import hide_own_frames
from memwatch.errors import MemwatchError, linked_errors
from memwatch.private_files import PrivateFiles, PrivateFilesError

if TYPE_CHECKING:
    import argparse

_REFUSED: Final = (
    "here memwatch can protect your files only by refusing changes of files. If the script failed for that reason, "
    "run it in a copy of its folder, and add --in-place"
)
_NOT_PRIVATE: Final = (
    "memwatch {verb} runs {what} and cannot keep it from changing your files: {error}. "
    "Run it in a copy of its folder, and add --in-place"
)
_NO_REFUSALS: Final = (
    ArithmeticError, AttributeError, KeyboardInterrupt, LookupError, NameError, SyntaxError, SystemExit, TypeError,
)  # fmt: skip
"""Errors that a refused change of a file does not raise."""


def add_in_place(parser: argparse.ArgumentParser) -> None:
    """Add the option `--in-place`."""
    parser.add_argument(
        "--in-place",
        action="store_true",
        help="let each run of the script write and delete your files, as the script does without memwatch",
    )


def private_files(options: argparse.Namespace, verb: str, what: str) -> PrivateFiles | None:
    """Give this process a private view of the user's files; return None with `--in-place`.

    Call it before torch is imported, which starts threads.

    Args:
        options: the options of the verb.
        verb: its name.
        what: what it runs, in words.

    Raises:
        MemwatchError: the files cannot be protected here.
    """
    if options.in_place:
        return None
    try:
        return PrivateFiles()
    except PrivateFilesError as error:
        raise MemwatchError(_NOT_PRIVATE.format(verb=verb, what=what, error=error)) from error


def failed(error: BaseException, files: PrivateFiles | None) -> BaseException:
    """Return the error of a program. If a refused change of a file may be the cause, print what to do."""
    may_be_refused = not any(isinstance(each, _NO_REFUSALS) for each in linked_errors(error))
    if files is not None and files.refuses and may_be_refused:
        say(_REFUSED)
    return hide_own_frames(error)
