"""The file of a plan: JSON with a format name and a version. `plan.py` says what is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memwatch.errors import MemwatchError
from memwatch.output_files import write_whole
from memwatch.plain_json import JsonError, read_json

if TYPE_CHECKING:
    from os import PathLike

_FORMAT, _VERSION = "memwatch-plan", 2
_READABLE = (1, _VERSION)
_HOW = "write one with `memwatch plan -o FILE CAPTURE` or plan.save(path)"
"""Version 1 has no training step."""


class PlanFileError(MemwatchError, ValueError):
    """A plan cannot be written, or a file holds no plan."""


def write_plan_file(path: str | PathLike[str], content: dict[str, Any], *, force: bool) -> None:
    """Write the content of a plan, whose values JSON can hold, to a file.

    Args:
        path: the file.
        content: what is in it.
        force: whether an existing file may be replaced.

    Raises:
        OutputError: the file cannot be written.
    """
    header = {"format": _FORMAT, "version": _VERSION}
    write_whole(Path(path), json.dumps(header | content), force=force)


def read_plan_file(path: str | PathLike[str]) -> dict[str, Any]:
    """Return the content of a file that `write_plan_file` wrote.

    Raises:
        PlanFileError: there is no such file, or it is no plan, or one of a newer memwatch.
    """
    if not Path(path).is_file():
        raise PlanFileError(f"{path} is not a file; {_HOW}")
    try:
        content = read_json(Path(path).read_bytes())
    except JsonError:
        content = None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise PlanFileError(f"{path} is not a plan; {_HOW}")
    if content.get("version") not in _READABLE:
        raise PlanFileError(
            f"{path} has plan format {content.get('version')!r}, and this memwatch reads formats up to {_VERSION}; "
            "plan again"
        )
    return content
