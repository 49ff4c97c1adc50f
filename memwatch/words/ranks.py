"""The words for the ranks of a job: notes on missing, incomplete or different captures, and names of processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch.words.processes import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

FINDINGS: Final = "Findings in {process}: memory that need not be alive, and the peak if it were freed"
COLUMNS: Final = "Increase: the part that the block added. At: the op and the line of the peak"
"""The meaning of the columns of the table of processes."""
LOWER_PEAKS: Final = ("process with a lower peak", "processes with lower peaks")
MORE_DIFFER: Final = ("thing differs", "things differ")
"""The words for one, and for several."""
HEADLINE: Final = "{worst} has the highest peak, {highest}: {share} above the mean of {count} ranks."
HEADLINE_EQUAL: Final = "All {count} ranks have the same peak, {highest}."
HEADLINE_EQUAL_PROCESSES: Final = "All {count} processes have the same peak, {highest}."
HEADLINE_PROCESS: Final = "{worst} has the highest peak, {highest}."
TO_DO: Final = " Lower the peak of {worst} first: it decides how much memory each device needs."
TO_DO_EQUAL: Final = " A change that lowers the peak must be made in every rank."
TO_DO_FINDING: Final = " Its first finding would lower it to {nbytes}."
"""The first sentences of the page of a job."""
RANK: Final = "rank {rank}"
RESTARTED_RANK: Final = "rank {rank} (restart {restart})"
CHILD: Final = "process {pid} of rank {rank}"
PROCESS: Final = "process {pid}"
UNKNOWN: Final = "{file}"
TWIN: Final = "{name} ({pid})"
"""The names of two captures that claim the same rank."""

MISSING: Final = "{ranks} left no capture: the job has {world_size} ranks, and nothing here is about {them}."
UNFINISHED: Final = (
    "{names} did not end: killed, still running, or the file could not be written. "
    "Figures cover the part that was written."
)
UNREADABLE: Final = "memwatch cannot read {name}, so the figures leave it out: {reason}"
UNREAD: Final = "memwatch could not read {count}, and the figures leave out {files}"
OTHER_FORMAT: Final = (
    "{name} was recorded by memwatch {version} in format {format}, which this memwatch cannot read: "
    "its figures come from the summary in the file."
)
OTHER_FORMAT_ALONE: Final = (
    "{name} was recorded by memwatch {version} in format {format}, which this memwatch cannot read. "
    "The file has no summary, so the figures leave it out."
)
VERSIONS: Final = "The ranks did not run the same {what}: {groups}."
CLOCKS: Final = (
    "The clock of {host} is {shift} {way} the clock of {other}, judged by the ends of the same steps. "
    "No figure here compares two clocks."
)
AHEAD, BEHIND = "ahead of", "behind"
IMAGINED: Final = "{name} trained in a fake process group of {world_size}: the other ranks did not exist."
TWICE: Final = "{count} captures claim to be {name}: each has its own row."
RESTARTED: Final = (
    "The job was restarted. Captures of earlier runs are not compared with the ranks of the last run: "
    "{names}."
)
OTHER_JOBS: Final = (
    "The captures come from jobs of different sizes: {groups}. "
    "A difference may be between runs, not between ranks."
)
JOB_OF: Final = "{world_size} ranks ({names})"
OTHER_DEVICE: Final = (
    "{names} mainly used {device}, the others {main}: devices are not compared with each other."
)
ONLY_ON: Final = "only in {names}"
MORE_ON: Final = "most in {name}"
IDLE: Final = "no tensor memory"
UNKNOWN_FIGURES: Final = "not readable"


def rank_names(ranks: Sequence[int]) -> str:
    """Return ranks as one phrase, runs of numbers put together: `ranks 0, 3-7 and 9`."""
    if len(ranks) == 1:
        return RANK.format(rank=ranks[0])
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return "ranks " + listed([f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs], 12)
