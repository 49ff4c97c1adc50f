"""Make the reading of a job: from files with `merge()`, or from summaries that `gather()` sends to rank 0."""

from __future__ import annotations

import glob
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from memwatch.errors import MemwatchError
from memwatch.job import JobPlace
from memwatch.ranks.job import Job
from memwatch.ranks.summary import Member, read_member, summarise

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from memwatch.capture import Capture


class MergeError(MemwatchError):
    """There is nothing to merge."""


def merge(paths: Iterable[str | os.PathLike[str]]) -> Ranks:
    """Return many captures of one job as one reading: ranks, and the processes that they started.

    The capture of a killed rank counts up to its last flush. `notes` lists ranks that are missing, cut, unreadable or
    of another version. A file with a summary is read fast. Other captures are read one at a time.

    Args:
        paths: the captures.

    Raises:
        MergeError: no file is given, or none can be read.
    """
    # a file that is named twice, for example by two shell patterns, is one process
    files = list(dict.fromkeys(os.path.realpath(path) for path in _listed(paths)))
    if not files:
        raise MergeError("name the captures to merge, as `memwatch merge run.*.memwatch`")
    members = [read_member(path) for path in files]
    if all(member.problem for member in members):
        if unmatched := next(
            (path for path in files if glob.has_magic(path) and not os.path.exists(path)), None
        ):
            raise MergeError(
                f"no file matches {os.path.relpath(unmatched)}; name captures, files that `memwatch run` wrote"
            )
        raise MergeError(f"no capture can be read: {members[0].problem}")
    return Ranks(members)


def _listed(paths: Iterable[str | os.PathLike[str]]) -> Iterable[str | os.PathLike[str]]:
    return [paths] if isinstance(paths, (str, os.PathLike)) else paths


class GatherError(MemwatchError):
    """The ranks could not be gathered."""


def gather(capture: Capture) -> Ranks | None:
    """Return the readings of all ranks on rank 0, and None on the others.

    Every rank must call it. The ranks send their summaries, not whole captures. Without a process group, the result has
    only this process.

    Raises:
        GatherError: a rank died or did not answer in the time of the process group.
    """
    member = _own(capture)
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return Ranks([member])
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    found: list[Any] | None = [None] * world_size if rank == 0 else None
    try:
        distributed.gather_object(asdict(member), found)
    except (RuntimeError, ValueError) as error:
        raise GatherError(
            f"rank {rank} of {world_size} could not gather: {str(error).splitlines()[0]}; record to files with "
            "profile('run.{rank}.memwatch') and merge those that are there with `memwatch merge`"
        ) from error
    return None if found is None else Ranks([Member(**each) for each in found])


def _own(capture: Capture) -> Member:
    """Return this process. An error is a problem of this rank only. The other ranks wait for its message."""
    meta = {**capture.meta, **JobPlace.here().meta}
    try:
        return Member(meta, summarise(capture))
    except Exception as error:
        return Member(meta, None, problem=f"{type(error).__name__}: {error}")


class Ranks(Job):
    """Many processes of one job. Sizes are in bytes, and each process's figures are those at its own peak.

    Only ranks are compared, or all processes if there are no ranks. They must mainly use the same kind of device.
    """

    def summary(self, **options: Any) -> str:
        """Return the job as text. The options are those of `memwatch.ranks.terminal.summary`."""
        from memwatch.ranks.terminal import summary

        return summary(self, **options)

    def report(self, path: str | os.PathLike[str], *, source: bool = True, force: bool = False) -> Path:
        """Write the HTML page of the job and, if its capture exists, the page of the worst process beside it.

        Args:
            path: the file to write.
            source: whether file paths and source lines may be in the page.
            force: whether an existing file may be replaced.
        """
        from memwatch.ranks.page import write_page

        return write_page(self, path, source=source, force=force)
