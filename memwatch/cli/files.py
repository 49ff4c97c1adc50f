"""Checks on the files that verbs write: an existing file is replaced only on request, an input never."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch.output_files import check_outputs

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from pathlib import Path

_EXISTS: Final = "{} exists; choose another name with -o, or replace it with -f"


def make_room(*outputs: Path | None, inputs: Iterable[str | os.PathLike[str]] = (), force: bool) -> None:
    """Raise if an output cannot be written. Every verb calls it first, so that a long run does not fail at its end.

    Args:
        outputs: the files that the verb writes; None for an optional file that is not wanted.
        inputs: the files that it reads.
        force: whether existing files may be replaced.

    Raises:
        OutputError: a file exists and `force` is False, is an input or another output, or its path cannot hold a file.
    """
    check_outputs([path for path in outputs if path is not None], inputs=inputs, force=force, exists=_EXISTS)
