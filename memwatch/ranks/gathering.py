"""gather(): every rank's summary on rank 0, by torch.distributed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from memwatch.errors import MemwatchError
from memwatch.job import JobPlace
from memwatch.ranks.member import Member
from memwatch.ranks.ranks import Ranks
from memwatch.ranks.summary import summarise

if TYPE_CHECKING:
    from memwatch.capture import Capture


class GatherError(MemwatchError):
    """The ranks could not be gathered."""


def gather(capture: Capture) -> Ranks | None:
    """Return the readings of all ranks on rank 0, None on the others; summaries travel, not whole captures.

    Every rank must call it. Without a process group it returns this process alone.

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
    """Return this process. An error is a problem of this rank, not of those that wait for it."""
    meta = {**capture.meta, **JobPlace.here().meta}
    try:
        return Member(meta, summarise(capture))
    except Exception as error:
        return Member(meta, None, problem=f"{type(error).__name__}: {error}")
