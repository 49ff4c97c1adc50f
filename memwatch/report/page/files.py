"""Write a page to a file, whole or not at all; an existing file is replaced only on request."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from memwatch import output_files
from memwatch.output_files import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


class ReportError(OutputError):
    """A report cannot be written to the path that was given."""


def refuse_existing(*targets: Path, inputs: Iterable[str] = (), force: bool) -> None:
    """Raise `ReportError` if a file exists and may not be replaced, or is an input."""
    with _as_report_error():
        output_files.check_outputs(targets, inputs=inputs, force=force)


def write_whole(target: Path, text: str, *, force: bool = False) -> None:
    """Write a file so that readers see all of it or nothing; see `output_files.write_whole`.

    Raises:
        ReportError: the file exists and `force` is not set, or its folder cannot be written.
    """
    with _as_report_error():
        output_files.write_whole(target, text, force=force)


@contextlib.contextmanager
def _as_report_error() -> Iterator[None]:
    try:
        yield
    except OutputError as error:
        raise ReportError(str(error)) from error
