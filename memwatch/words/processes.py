"""The words for a process: its allocators, the processes that it starts, and the moment when memory runs out."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Protocol

from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memwatch.devices.adapters import Reserved


class StartedAs(enum.Enum):
    """How a process was started."""

    LOADER_WORKER = 0
    MULTIPROCESSING = 1
    PYTHON = 2
    FORK = 3


NAMES: Final = {
    StartedAs.LOADER_WORKER: ("DataLoader worker", "DataLoader workers (counted at each start)"),
    StartedAs.MULTIPROCESSING: ("process of multiprocessing", "processes of multiprocessing"),
    StartedAs.PYTHON: ("Python program", "Python programs"),
    StartedAs.FORK: ("fork", "forks"),
}
"""The words for one process of a kind, and for several."""
UNSEEN: Final = "{what} started in the block: tensors of other processes are not in this capture."
ASKED_RECORD: Final = " `memwatch run --children` records them too."
ASKED_RECORD_BUT: Final = " `memwatch run --children` records them too, but not {what}: {reason}."
NEVER_RECORDED: Final = " `memwatch run --children` records none of them: {reason}."
RECORDED: Final = (
    "{what} started in the block. Each process that loads torch records into its own file, beside this one: "
    "`memwatch merge` shows them together."
)
UNREACHED: Final = "{what} started in the block without recording: {reason}."
FORKED_AWAY: Final = "a process made by os.fork() records nothing"
OTHER_ENVIRONMENT: Final = "a program with another environment does not get the setting"


def what_started(counts: Mapping[StartedAs, int]) -> str:
    """Return the number of started processes of each kind: `2 DataLoader workers and 1 fork`."""
    parts = [f"{count} {NAMES[kind][count != 1]}" for kind, count in counts.items() if count]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def started_text(counts: Mapping[StartedAs, int], unreached: Mapping[StartedAs, int], *, asked: bool) -> str:
    """Return the sentence on the processes that started in a block.

    Args:
        counts: how many of each kind.
        unreached: of these, how many do not record although they should.
        asked: whether children should record.
    """
    reached = {kind: count - unreached.get(kind, 0) for kind, count in counts.items()}
    reason = ", ".join(
        reason
        for kind, reason in ((StartedAs.FORK, FORKED_AWAY), (StartedAs.PYTHON, OTHER_ENVIRONMENT))
        if unreached.get(kind)
    )
    if asked:
        texts = [RECORDED.format(what=what_started(reached))] if any(reached.values()) else []
        if reason:
            texts.append(UNREACHED.format(what=what_started(unreached), reason=reason))
        return " ".join(texts)
    text = UNSEEN.format(what=what_started(counts))
    if not reason:
        return text + ASKED_RECORD
    way = ASKED_RECORD_BUT if any(reached.values()) else NEVER_RECORDED
    return text + way.format(what=what_started(unreached), reason=reason)


PARTS: Final = {
    "tensor_bytes": "tensors",
    "file_bytes": "code and files",
    "python_bytes": "Python's small objects",
    "entry_bytes": "other memory from before the recording",
    "python_free_bytes": "free in Python's allocator",
    "malloc_free_bytes": "freed but kept by malloc",
    "other_bytes": "without a known cause",
}
"""The columns of the table `process` that sum to RSS, in words."""
ASK_PROCESS: Final = "; `memwatch.process_memory()` in the program shows more of the causes"
_MUCH_UNKNOWN: Final = 0.1
"""If a larger share of RSS has no known cause, the sentence names `process_memory`. A guess."""
_LEAST_SHARE: Final = 0.01
"""Smaller parts are summed up. A guess."""


def parts_text(rss_bytes: int, parts: Mapping[str, int]) -> str:
    """Return a sentence: RSS and its parts, largest first.

    Args:
        rss_bytes: the memory of the process in RAM.
        parts: the bytes of the columns in `PARTS`.
    """
    shown = [name for name, nbytes in parts.items() if nbytes >= max(_LEAST_SHARE * rss_bytes, 1)]
    told = [
        f"{format_bytes(parts[name])} {PARTS[name]}" for name in sorted(shown, key=lambda name: -parts[name])
    ]
    rest = sum(nbytes for name, nbytes in parts.items() if name not in shown)
    told += [f"{format_bytes(rest)} more"] if rest else []
    hint = ASK_PROCESS if parts.get("other_bytes", 0) > _MUCH_UNKNOWN * rss_bytes else ""
    return f"RSS {format_bytes(rss_bytes)} ({', '.join(told)}){hint}"


class ReservedBytes(Protocol):
    """The memory that an allocator reserved on a device; see `memwatch.analysis.facts.reserved.ReservedBytes`."""

    @property
    def at_peak_bytes(self) -> int:
        """The reserved bytes at the peak."""

    @property
    def most_bytes(self) -> int:
        """The highest reserved bytes."""

    @property
    def live_at_peak_bytes(self) -> int:
        """The live part of the reserved bytes at the peak."""

    @property
    def free_at_peak_bytes(self) -> int:
        """The free part."""

    @property
    def largest_free_bytes(self) -> int | None:
        """The largest free piece, or None if it is unknown."""


def reserved_at_peak_text(held: ReservedBytes) -> str:
    """Return a clause: the reserved bytes at the peak and the free part of them."""
    pieces = (
        f" (the largest piece has {format_bytes(held.largest_free_bytes)})" if held.largest_free_bytes else ""
    )
    return (
        f"Reserved by its allocator at the peak: {format_bytes(held.at_peak_bytes)}, of which "
        f"{format_bytes(held.live_at_peak_bytes)} live and {format_bytes(held.free_at_peak_bytes)} free{pieces}; "
        f"at most {format_bytes(held.most_bytes)}"
    )


def reserved_text(held: Reserved) -> str:
    """Return a clause: the reserved bytes, and how many of them are in use, wait for a stream, or are free."""
    waiting = (
        f", {format_bytes(held.waiting_bytes)} still in use by another stream" if held.waiting_bytes else ""
    )
    return (
        f"{format_bytes(held.reserved_bytes)} were reserved in {counted(held.segments, 'segment')}: "
        f"{format_bytes(held.allocated_bytes)} allocated for the {format_bytes(held.requested_bytes)} that were "
        f"asked for{waiting}, {format_bytes(held.free_bytes)} free (the largest free block has "
        f"{format_bytes(held.largest_free_bytes)})"
    )


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 segment`, `2 segments`, `2 searches`."""
    ending = "es" if noun.endswith(("ch", "sh", "s", "x")) else "s"
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """Return names as one phrase, a long list shortened: `a, b and 3 others`."""
    shown = list(names[:most])
    rest = len(names) - len(shown)
    if rest:
        return f"{', '.join(shown)} and {rest} {'other' if rest == 1 else 'others'}"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


LIVE: Final = "memwatch: {nbytes} were live on {device} when {what}{asked}"
NOTHING: Final = "memwatch: nothing of this block was live on the device when {what}{asked}"
RAN_OUT: Final = "memory ran out"
LEFT: Final = "this error left the block"
IN_WORKER: Final = (
    "memwatch: memory ran out in a worker, another process or thread{asked}; {nbytes} were live on {device} here "
    "when this error left the block"
)
ASKED_IN_WORKER: Final = ", which asked for {nbytes}"
ABOVE_LIMIT: Final = "they passed the limit"
ASKED: Final = ", and the program requested {nbytes} more"
FAILED: Final = "in {op}{place}"
AT: Final = " at {place}"
BREAKDOWN: Final = {"by category:": "category", "by holder:": "holder_kind", "by line:": "line"}
"""The parts of the breakdown, each with the column that it groups by."""
ROW: Final = "  {nbytes:>10}  {what}"
REST: Final = "  {nbytes:>10}  {count:,} more"
OF_KIND: Final = "{kind}, most of it: {holder}"
FINDINGS: Final = "changes that would have left room:"
FINDING: Final = "  {finding}"
NO_FINDING: Final = "memwatch found no change in the recorded part that would have left room"
WROTE: Final = "written: {file}"
NOT_TOLD: Final = "memwatch: memory ran out, and memwatch could not list the live memory: {why}"
PROGRAM_FAILED: Final = "failed"
"""The kind of the note about a program that ended with an error."""
ENDED_BY: Final = "{error} ended the recorded code, so its later peaks are not in this recording"
AN_ERROR: Final = "An error"
"""Replaces the class of an error on a page without sources."""
GAVE_WAY_KIND: Final = "ended"
"""The kind of the note about a recording of a whole program that ended before the program."""
GAVE_WAY: Final = "the program opened a memwatch.profile() block of its own, and this recording ended there"
NOT_ENDED: Final = "memwatch: the block has no profile, because ending the recording failed: {why}"
LARGE_OBJECTS: Final = "{size} of this growth in {objects} held by {holder}"
LARGEST_OBJECTS: Final = (
    "{size} of this growth in {held:,} of the {sampled:,} largest of {number:,} objects, held by {holder}"
)


def large_objects_text(nbytes: int, held: int, sampled: int, number: int, holder: str) -> str:
    """Return a sentence about the holder of large objects that are new or have grown.

    Args:
        nbytes: the new bytes that the holder has.
        held: how many objects it has.
        sampled: how many objects were searched, the largest ones.
        number: how many objects there are.
        holder: the holder.
    """
    size = format_bytes(nbytes)
    if sampled == number:
        return LARGE_OBJECTS.format(size=size, objects=counted(held, "object"), holder=holder)
    return LARGEST_OBJECTS.format(size=size, held=held, sampled=sampled, number=number, holder=holder)


HELD_OBJECTS: Final = "{held} of {sampled} `{kind}` that were looked at are held by {holder}"
GREW: Final = "{more:+,} `{name}` ({size})"
GREW_IN_PLACE: Final = "`{name}` +{size} (the objects grew in their place)"
GREW_WITH_FEWER: Final = "`{name}` +{size} (but {fewer:,} objects fewer)"
"""For a type with more bytes in fewer objects: large objects came, and more small ones went."""


def grown_type_text(name: str, more: int, nbytes: int) -> str:
    """Return how many objects and bytes of a type there are more than at the start."""
    size = format_bytes(nbytes)
    if more > 0:
        return GREW.format(more=more, name=name, size=size)
    if more == 0:
        return GREW_IN_PLACE.format(name=name, size=size)
    return GREW_WITH_FEWER.format(name=name, size=size, fewer=-more)


NEW_ENTRIES: Final = "{added:,} new entries (about {size}) in the `{kind}` held by {holder}"
GROWN_CONTAINERS: Final = (
    "{count} of the containers that grew most (about {size} together) are held by {holder}"
)
COPIES: Final = (
    "{forks} {copied} of copies of the objects in the `{kind}` held by {holder} "
    "({entries}{size}). Python writes a reference count into each object that it reads, and the write copies the page. "
    "Keep the entries in one numpy array or tensor (texts: the encoded bytes and their offsets): forks share it"
)
ENTRIES_IN: Final = "{count:,} entries in "
HOW_AT_MONITOR: Final = "the rest of the row native from when the monitor began"
HOW_AT_IMPORT: Final = (
    "mallinfo2 before and after the import of torch, or at the import of memwatch, "
    "without the blocks of Python objects"
)
HOW_ARROW_FREE: Final = "smaps: mappings that have buffers of pyarrow, without the allocated bytes"
HOW_DEVICE_TENSORS: Final = "torch's allocator: blocks in use, by tensors and by kernels as workspace"
HOW_DEVICE_CACHE: Final = "torch's allocator: free blocks; empty_cache() returns whole segments"
HOW_DEVICE_ELSEWHERE: Final = "torch's allocator: free blocks in the pools of graphs and of MemPool"
HOW_DEVICE_OUTSIDE: Final = (
    "the use of the device without torch's part: contexts, libraries such as NCCL, and other processes"
)
DEVICE_HEAD: Final = "{device}: {used} of {capacity} are in use, by all processes together"
UNREAD_DEVICE: Final = "the memory of {device} could not be read: {error}"
DEVICE_CACHE: Final = (
    "blocks that torch keeps after they were freed. If no new tensor fits into them, `memwatch tune` finds a better "
    "setting of the allocator"
)
DEVICE_ELSEWHERE: Final = (
    "free memory in the pools of graphs and of MemPool. Let graphs share one pool, and delete graphs that you no "
    "longer need"
)
DEVICE_OUTSIDE: Final = (
    "memory that torch's allocator of this process did not take: the context, libraries that take memory themselves "
    "(NCCL, cuDNN, TensorRT), and other processes on the device. `nvidia-smi` lists the processes"
)
_EXPLAINED: Final = "{share:.0f} % of RSS explained"
_FROM_START: Final = ": {known:.0f} % by its cause, and {share:.0f} % is native memory from the start"
_LEAST_START: Final = 0.005
"""A smaller share would be printed as 0 %."""


def coverage_text(coverage: float, start_share: float) -> str:
    """Return how much of RSS is explained.

    Args:
        coverage: the share of RSS in rows that name a cause.
        start_share: the share of RSS that was native memory at the start. It is part of `coverage`.
    """
    text = _EXPLAINED.format(share=100 * coverage)
    if start_share < _LEAST_START:
        return text
    whole, share = round(100 * coverage), round(100 * start_share)
    return text + _FROM_START.format(known=whole - share, share=share)


NOT_WRITTEN: Final = "memwatch could not write the report: {why}"
PARTLY_WRITTEN: Final = "only {files} could be written: {why}"


def not_written_text(files: Sequence[str], why: str) -> str:
    """Return which files of a report could be written, and the reason why the others could not."""
    return PARTLY_WRITTEN.format(files=" and ".join(files), why=why) if files else NOT_WRITTEN.format(why=why)


NO_FILE: Final = "{given} is not the path of a file for the samples; "
GIVE_PATH: Final = 'give one such as "memory.jsonl"'
GIVE_INTERVAL: Final = "to set the seconds between two samples, write interval_s={given}"


def no_file_text(given: object) -> str:
    """Return what is wrong with the file for the samples. A number is meant as the interval."""
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    return (NO_FILE + (GIVE_INTERVAL if is_number else GIVE_PATH)).format(given=repr(given))


ARROW_BUFFERS: Final = "buffers of pyarrow, such as the columns of tables, and of text in pandas 3"
OTHER_MAPPINGS: Final = (
    "memory of mmap that belongs to no Python object; the allocator of a library, such as jemalloc, mimalloc or "
    "tcmalloc, takes such memory"
)
FOLLOWS: Final = "it follows from {row}: blocks that stay in use keep the freed memory between them"
AGE: Final = "as of {seconds:,.0f} s ago: "
"""Before the first line of a report whose sample is old."""
VERDICT_IN: Final = "; they take about {seconds:,} s more"
STRETCHED: Final = (
    "one sample per {gap:.1f} s instead of {interval:g} s: each takes {cost:.2f} s of processor time, and memwatch "
    "takes less than 1 % of a processor in a long run"
)
NOT_SEARCHED: Final = "{size} is newer than the last search, and may be Python objects such as numpy arrays"
NOT_EXAMINED_YET: Final = "not examined yet"
OTHER_PROCESS: Final = (
    "another process ran out of memory. The figures below are about this process, which raised the error again; the "
    "memory of the other one is not known"
)
TOO_LARGE: Final = "no change would have left room: the request itself is the problem ({asked} in one piece)"
RAISED: Final = "the program raised a MemoryError itself, and no limit of memory was near"
REQUEST_FAILED: Final = "a request for memory failed, and no limit of memory was near"
NO_CHANGE_FOR_RAISED: Final = (
    "memwatch suggests no change: {free} of memory were still free when this process was largest"
)
TOO_LARGE_UNKNOWN: Final = (
    "no change would have left room: the request itself is the problem (its size is not known; {free} of memory were "
    "still free when this process was largest)"
)
HAS_ENDED: Final = "process {pid} has ended"
NOT_READABLE: Final = "process {pid} belongs to another user or may not be traced; "
AS_ITS_USER: Final = "run memwatch as its user, or as root"
AS_ROOT: Final = "you are root, but this container or sandbox lacks the capability CAP_SYS_PTRACE"


def not_readable_text(pid: int, *, is_root: bool) -> str:
    """Return why a process cannot be read."""
    return NOT_READABLE.format(pid=pid) + (AS_ROOT if is_root else AS_ITS_USER)
