"""One process of a job, as its capture or its own summary tells of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memwatch.capture import load
from memwatch.capture.errors import CaptureError
from memwatch.capture.rank_summary import Head, read_head
from memwatch.ranks.summary import is_summary, summarise
from memwatch.words.ranks import CHILD, PROCESS, RANK, RESTARTED_RANK, UNKNOWN

if TYPE_CHECKING:
    import os


@dataclass(frozen=True)
class Member:
    """One process.

    Attributes:
        meta: what was recorded where; empty where the file cannot be read.
        summary: what it had, see `summary.py`; None where nothing can be known.
        path: its capture, empty for one that was gathered.
        problem: why nothing can be known, empty where something can.
        format_version: the format of its capture where this memwatch cannot read it, else 0.
    """

    meta: dict[str, Any]
    summary: dict[str, Any] | None
    path: str = ""
    problem: str = ""
    format_version: int = 0

    @property
    def rank(self) -> int | None:
        """Its rank; None for one that has none."""
        rank = self.meta.get("rank")
        return int(rank) if isinstance(rank, int) else None

    @property
    def restart(self) -> int:
        """How often its job had been started again before it."""
        restart = self.meta.get("restart", 0)
        return restart if isinstance(restart, int) else 0

    @property
    def is_complete(self) -> bool:
        """Whether its block ended."""
        return bool(self.meta.get("complete", True))

    @property
    def name(self) -> str:
        """What it is called: `rank 3`, `process 4243 of rank 3`, `process 4243`."""
        pid = self.meta.get("pid")
        if self.rank is not None:
            return (RESTARTED_RANK if self.restart else RANK).format(rank=self.rank, restart=self.restart)
        if pid is None:
            return UNKNOWN.format(file=Path(self.path).name)
        if "of_rank" in self.meta:
            return CHILD.format(pid=pid, rank=self.meta["of_rank"])
        return PROCESS.format(pid=pid)


def read_member(path: str | os.PathLike[str]) -> Member:
    """Return the process of a capture file. Does not raise: `problem` says why nothing can be known of it.

    The summary is the one in the file; where it has none, the tables are read for it and let go.
    """
    try:
        head = read_head(path)
    except CaptureError as error:
        return Member({}, None, str(path), problem=str(error))
    other_format = 0 if head.is_readable else head.format_version
    if head.summary is not None and is_summary(head.summary):
        return Member(head.meta, head.summary, str(path), format_version=other_format)
    if other_format:
        return Member(head.meta, None, str(path), format_version=other_format)
    return _from_tables(path, head)


def _from_tables(path: str | os.PathLike[str], head: Head) -> Member:
    try:
        capture = load(path)
    except CaptureError as error:
        return Member(head.meta, None, str(path), problem=str(error))
    return Member(capture.meta, summarise(capture), str(path))
