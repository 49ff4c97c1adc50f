"""merge(): many captures of one job as one reading."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from memwatch.errors import MemwatchError
from memwatch.ranks.member import read_member
from memwatch.ranks.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterable


class MergeError(MemwatchError):
    """There is nothing to merge."""


def merge(paths: Iterable[str | os.PathLike[str]]) -> Ranks:
    """Return many captures of one job as one reading: ranks, and the processes that they started.

    A capture of a rank that was killed counts as far as it goes; `notes` says which ranks are missing, cut, unreadable
    or of another version. A file that has its summary is read in a moment, and one capture at a time is in memory.

    Args:
        paths: the captures.

    Raises:
        MergeError: none is named, or none can be read.
    """
    # one file named twice, as by two patterns of a shell, is one process
    files = list(dict.fromkeys(os.path.realpath(path) for path in _listed(paths)))
    if not files:
        raise MergeError("name the captures to merge, as `memwatch merge run.*.memwatch`")
    members = [read_member(path) for path in files]
    if all(member.problem for member in members):
        raise MergeError(f"no capture can be read: {members[0].problem}")
    return Ranks(members)


def _listed(paths: Iterable[str | os.PathLike[str]]) -> Iterable[str | os.PathLike[str]]:
    return [paths] if isinstance(paths, (str, os.PathLike)) else paths
