"""The fields of each record and their meaning. `docs/json.md` is generated from them.

A record holds what JSON can: numbers, texts, lists and records. The end of a field's name is its unit: `_bytes`, `_ns`,
`_s` or `_ratio`. `nbytes` is in bytes.
"""

from __future__ import annotations

from typing import Annotated

# pydantic checks the answers of the MCP server. Before Python 3.12 it accepts only this TypedDict.
from typing_extensions import TypedDict


class PeakRecord(TypedDict):
    """The peak of one device, and the instant at which it was reached."""

    device: Annotated[str, "the device, such as `cpu` or `cuda:0`"]
    peak_bytes: Annotated[int, "most live bytes at one instant"]
    baseline_bytes: Annotated[int, "live when the block was entered"]
    peak_increase_bytes: Annotated[int, "most bytes, allocated in the block, that were live at one instant"]
    event: Annotated[int, "row of `prof.timeline` at which the peak was reached"]
    time_ns: Annotated[int, "time since the start of the recording"]
    op: Annotated[int, "number of the op that ran, -1 for none"]
    op_name: Annotated[str, "its name"]
    phase: Annotated[str, "one of PHASES, see tables.md"]
    module: Annotated[str, "qualified name of the module that ran"]
    line: Annotated[str, "`file:line` of the innermost frame that is not torch's"]
    own_line: Annotated[str, "`file:line` of the program's own code, where that is another"]


class GroupRecord(TypedDict):
    """Storages that have something in common."""

    name: Annotated[str, "the value that they share"]
    nbytes: Annotated[int, "their bytes"]
    count: Annotated[int, "how many storages"]


class StorageRecord(TypedDict):
    """One storage that is alive at an instant."""

    storage: Annotated[int, "its number, the index of `prof.storages`"]
    nbytes: Annotated[int, "its bytes"]
    category: Annotated[str, "one of CATEGORIES"]
    name: Annotated[str, "a readable name"]
    tensor: Annotated[str, "dtype and shape"]
    module: Annotated[str, "qualified name of the module"]
    op_name: Annotated[str, "the op that made it"]
    line: Annotated[str, "`file:line` of the innermost frame that is not torch's"]


class HeldStorageRecord(StorageRecord):
    """One storage that is alive at the peak, and who holds it."""

    phase: Annotated[str, "phase of its life at the peak: lag, use, drag or void"]
    holder: Annotated[str, "who holds it, in words; empty if the record leaves it out"]
    holder_kind: Annotated[str, "kind of the holder"]
    holder_evidence: Annotated[str, "how the holder is known, one of EVIDENCE"]


class FindingRecord(TypedDict):
    """One change that would lower the peak."""

    kind: Annotated[str, "kind of the finding, as `Finding.kind`"]
    nbytes: Annotated[int, "bytes at the peak that it is about"]
    holder: Annotated[str, "who holds them"]
    site: Annotated[str, "`file:line` to edit, empty if there is none"]
    added_at: Annotated[
        list[str], "of a container that grows, `file:line` of each line that adds to it; empty if not known"
    ]
    advice: Annotated[str, "what to do, one sentence"]
    path: Annotated[list[str], "the retention path, one reference each"]
    predicted_peak_bytes: Annotated[int, "the peak after this change alone"]
    storages: Annotated[list[int], "the storages concerned"]


class WayRecord(TypedDict):
    """One change of the program that was simulated: the peak would be lower with it."""

    way: Annotated[str, "the change in a few words"]
    kind: Annotated[str, "what is changed, such as `checkpoint`; two kinds are joined by ` + `"]
    peak_bytes: Annotated[int, "most live bytes at one instant with the change"]
    time_ratio: Annotated[
        float | None, "duration of the ops, relative to that without the change; null if not known"
    ]
    basis: Annotated[str, "`simulated` or `estimated`"]
    decision: Annotated[str, "what to decide or to know first; empty if there is nothing"]
    lines: Annotated[str, "the lines of Python that make the change"]
    modules: Annotated[str, "the modules that it changes, by their names in the model, joined by `, `"]
    rank: Annotated[
        int | None,
        "its place in the summary and on the page, from 1; null if a finding of the same kind stands for it there",
    ]


class NoteRecord(TypedDict):
    """A limit of the recording."""

    kind: Annotated[str, "a word"]
    text: Annotated[str, "a sentence"]


class ProcessPartsRecord(TypedDict):
    """The parts of a process's RSS at one time, as in the table `process` (tables.md)."""

    time_ns: Annotated[int, "time since the block was entered, nanoseconds"]
    rss_bytes: Annotated[int, "the memory of the process in RAM; the figures below sum to it"]
    tensor_bytes: Annotated[int, "live bytes on the host, as far as they fit"]
    file_bytes: Annotated[int, "code, libraries and mapped files"]
    python_bytes: Annotated[int, "Python's objects of up to 512 bytes"]
    python_free_bytes: Annotated[int, "free memory that Python's own allocator keeps"]
    malloc_free_bytes: Annotated[int, "free memory that malloc keeps"]
    entry_bytes: Annotated[int, "the remaining memory, as far as it was there when the block was entered"]
    other_bytes: Annotated[int, "memory that came later and has no known cause"]
    coverage_ratio: Annotated[float, "the share of RSS outside `other_bytes`"]


class ReadingsRecord(TypedDict):
    """The whole process while the block ran."""

    entry: Annotated[ProcessPartsRecord, "the first reading"]
    largest: Annotated[ProcessPartsRecord, "the reading with the highest RSS"]
    last: Annotated[ProcessPartsRecord, "the last reading"]
    readings: Annotated[int, "how many there are"]


class SummaryRecord(TypedDict):
    """The parts of the peak: `memwatch summary --json`."""

    peak: Annotated[PeakRecord, "the peak of the device that the record is about"]
    devices: Annotated[dict[str, int], "peak bytes of every device that had any"]
    categories: Annotated[list[GroupRecord], "live memory at the peak by category, largest first"]
    modules: Annotated[list[GroupRecord], "by module, without its children, largest first"]
    lines: Annotated[list[GroupRecord], "by the line that made it, largest first"]
    holders: Annotated[list[GroupRecord], "by kind of holder, largest first"]
    evidence_bytes: Annotated[dict[str, int], "bytes by how their holders are known"]
    storages: Annotated[list[HeldStorageRecord], "the largest, as many as `-n` says"]
    num_storages: Annotated[int, "how many were live at the peak"]
    findings: Annotated[list[FindingRecord], "memory that the program could free or not make, largest first"]
    ways: Annotated[list[WayRecord], "changes of the program that were simulated, the lowest peak first"]
    notes: Annotated[list[NoteRecord], "limits of the recording"]
    process: Annotated[
        ReadingsRecord | None, "the whole process; null where it was not read, as on other systems than Linux"
    ]


class DevicePeakRecord(TypedDict):
    """The peak of one device, in three figures.

    An accelerator has three more figures of its allocator: `peak_reserved_bytes` (reserved bytes at the peak),
    `most_reserved_bytes` (most reserved bytes at any time), and `peak_largest_free_bytes` (the largest free piece at
    the peak).
    """

    peak_bytes: Annotated[int, "most live bytes at one instant"]
    baseline_bytes: Annotated[int, "live when the block was entered"]
    peak_increase_bytes: Annotated[int, "most bytes, allocated in the block, that were live at one instant"]


class AllocatedRecord(TypedDict):
    """The allocations of a line or an op over the whole run."""

    name: Annotated[str, "the line or the op"]
    nbytes: Annotated[int, "all bytes that it allocated, whether or not they were alive at once"]
    count: Annotated[int, "how many allocations"]
    largest_bytes: Annotated[int, "the largest of them"]


class StatsRecord(TypedDict):
    """Totals of a run: `memwatch stats --json`. Fields that an imported memory snapshot lacks are null.

    For an accelerator it also has the three figures of reserved bytes that DevicePeakRecord describes.
    """

    device: Annotated[str, "the device that the figures are about"]
    devices: Annotated[dict[str, DevicePeakRecord], "the peaks of every device that had any"]
    peak_bytes: Annotated[int, "most live bytes at one instant"]
    baseline_bytes: Annotated[int, "live when the block was entered"]
    peak_increase_bytes: Annotated[int, "most bytes, allocated in the block, that were live at one instant"]
    peak_op: Annotated[int, "number of the op that ran at the peak, -1 for none"]
    peak_op_name: Annotated[str, "its name"]
    peak_line: Annotated[str, "`file:line` that called it"]
    ops: Annotated[int | None, "how many ops ran"]
    allocations: Annotated[int, "how many allocations"]
    frees: Annotated[int, "how many frees"]
    allocated_bytes: Annotated[int, "bytes of all allocations"]
    workspaces: Annotated[int | None, "allocations that no tensor named: within one op"]
    live_at_peak: Annotated[int, "how many storages were live at the peak"]
    saved_for_backward_bytes: Annotated[int | None, "bytes at the peak that autograd saved"]
    only_for_backward_ratio: Annotated[float | None, "share of the peak that is there only for backward"]
    category_bytes: Annotated[dict[str, int], "live memory at the peak by category"]
    holder_evidence_bytes: Annotated[dict[str, int], "bytes by how their holders are known"]
    histogram: Annotated[
        list[tuple[int, int, int, int]], "sizes from, sizes below, how many allocations, their bytes"
    ]
    top_lines: Annotated[list[AllocatedRecord], "the lines that allocated most, as many as `-n` says"]
    top_ops: Annotated[list[AllocatedRecord], "the ops that allocated most"]
    findings: Annotated[int | None, "how many findings"]
    meta: Annotated[dict[str, str], "facts about the run, as the text shows them"]


class LiveRecord(TypedDict):
    """The live memory just after one event of the timeline."""

    device: Annotated[str, "the device"]
    event: Annotated[int, "row of `prof.timeline`"]
    time_ns: Annotated[int, "time since the start of the recording"]
    live_bytes: Annotated[int, "bytes live after it"]
    num_storages: Annotated[int, "how many storages were live"]
    storages: Annotated[list[StorageRecord], "the largest of them"]


class TreeRecord(TypedDict):
    """A branch of the peak: `memwatch tree --json`."""

    name: Annotated[str, "the value that its storages share; `peak` for the root"]
    nbytes: Annotated[int, "their bytes"]
    count: Annotated[int, "how many storages"]
    children: Annotated[list[TreeRecord], "the branches below, largest first"]


class ReplayRecord(TypedDict):
    """A plan that was executed."""

    peak_increase_bytes: Annotated[int, "measured peak increase"]
    planned_bytes: Annotated[int, "the peak increase of the plan"]
    identical: Annotated[
        bool | None, "whether the results were bitwise equal; null where nothing was compared"
    ]
    num_checked: Annotated[int, "storages compared"]
    max_abs_diff: Annotated[float, "largest difference of any element"]
    synthetic: Annotated[bool, "whether the inputs were made up"]
    duration_s: Annotated[float, "time of the run, in seconds"]


class PlanRecord(TypedDict):
    """A plan: `memwatch plan --json` and `memwatch replay --json`."""

    program_peak_increase_bytes: Annotated[int, "peak increase of the program as it was recorded"]
    peak_increase_bytes: Annotated[int, "peak increase of the plan"]
    lower_bound_bytes: Annotated[int, "no plan of this kind is lower"]
    budget_bytes: Annotated[int | None, "the budget; null if the plan only changes the order of ops"]
    extra_cost_ratio: Annotated[float, "FLOPs computed again, as a share of the program's"]
    extra_time_ratio: Annotated[float | None, "the same in measured time; null where ops were not timed"]
    moved_bytes: Annotated[int, "bytes moved out and back"]
    replay: Annotated[ReplayRecord | None, "its execution; null for a plan that was not executed"]


class SiteRecord(TypedDict):
    """A place where memory of either peak was made, and how much it changed."""

    category: Annotated[str, "one of CATEGORIES"]
    module: Annotated[str, "qualified name of the module"]
    site: Annotated[str, "a name, or an op and the function that called it: no line, for an edit moves those"]
    old_bytes: Annotated[int, "bytes at the old peak"]
    new_bytes: Annotated[int, "bytes at the new peak"]
    delta_bytes: Annotated[int, "the difference"]
    old_count: Annotated[int, "storages at the old peak"]
    new_count: Annotated[int, "storages at the new peak"]


class DifferenceRecord(TypedDict):
    """Two captures side by side: `memwatch diff --json`."""

    device: Annotated[str, "the device"]
    old_peak_bytes: Annotated[int, "peak of the old capture"]
    new_peak_bytes: Annotated[int, "peak of the new one"]
    sites: Annotated[list[SiteRecord], "largest change first"]


class EstimateRecord(TypedDict):
    """The estimated memory of a program: `memwatch estimate --json`."""

    device: Annotated[str, "the device that the figures are about"]
    tensor_bytes: Annotated[int, "most bytes of tensors that are alive at once: counted"]
    workspace_bytes: Annotated[
        int | None, "how much the workspace of kernels adds to the peak, null if unknown"
    ]
    workspace_is_scaled: Annotated[bool, "whether that follows from runs of smaller sizes"]
    workspace_unknown: Annotated[list[str], "ops whose workspace is not known"]
    reserved_bytes: Annotated[int | None, "bytes that a caching allocator reserves; null without one"]
    allocator: Annotated[
        str | None,
        "whose reserved bytes these are: torch's own allocator, or memwatch's model; null without one",
    ]
    fits: Annotated[bool | None, "whether it fits the card or --device-memory; null without one"]
    most_reserved_on_device_bytes: Annotated[
        int | None, "bytes reserved at most on that device; null likewise"
    ]
    retries: Annotated[
        int | None, "allocations for which the allocator first gave free segments back there; null likewise"
    ]
    assumed_bytes: Annotated[
        int, "bytes of the card that other memory than tensors is assumed to take; 0 without a card"
    ]
    largest_batch_size: Annotated[
        int | None, "the largest batch size that fits, 0 if none does; null without --largest-batch"
    ]
    rounding_bytes: Annotated[int, "modelled bytes that rounding to whole blocks adds to the peak"]
    block_bytes: Annotated[int, "the size of a block"]
    rank: Annotated[int, "the rank that ran"]
    world_size: Annotated[int, "ranks of the job, 0 where the program decides"]
    steps: Annotated[int, "steps that the optimizer made"]
    reads: Annotated[list[str], "`file:line` of each line that read a value and got 0"]
    remarks: Annotated[list[str], "sentences about differences from a real run"]
    summary: Annotated[SummaryRecord, "the peak, as of a recorded run"]


class SettingRecord(TypedDict):
    """The bytes that torch's CUDA allocator reserves for a program under one setting."""

    settings: Annotated[str, "the value of `PYTORCH_ALLOC_CONF`, empty for the default"]
    most_reserved_bytes: Annotated[int, "most reserved bytes"]
    most_allocated_bytes: Annotated[int, "most bytes of blocks in use"]
    retries: Annotated[int, "allocations for which it first released free segments"]
    fits: Annotated[bool, "whether every allocation fitted on the device"]


class EarlierLineRecord(TypedDict):
    """A line whose long-lived tensors split segments."""

    line: Annotated[str, "`file:line`"]
    count: Annotated[int, "its tensors that are alive when most bytes are reserved"]
    nbytes: Annotated[int, "their bytes"]
    holder: Annotated[str, "the holder of the largest; empty if unknown"]
    most_reserved_bytes: Annotated[int, "most reserved bytes by default if they are made before all others"]


class TuneRecord(TypedDict):
    """The settings of torch's CUDA allocator for a program: `memwatch tune --json`."""

    device: Annotated[str, "the device whose tensors count"]
    allocator: Annotated[str, "the allocator that ran: torch's own, or memwatch's model"]
    is_model: Annotated[bool, "whether memwatch's model ran"]
    device_bytes: Annotated[int | None, "the memory of the device, null if it never fills up"]
    lower_bound_bytes: Annotated[int, "the tensors' peak: no setting can reserve less"]
    environment: Annotated[str, "the line that sets the best setting, empty if that is the default"]
    settings: Annotated[list[SettingRecord], "the best first"]
    rejected: Annotated[dict[str, str], "why a setting was not tried, by setting"]
    earlier: Annotated[list[EarlierLineRecord], "lines whose tensors split segments"]


class RowRecord(TypedDict):
    """A part of a process's memory."""

    row: Annotated[str, "its name, such as `tensors` or `thread stacks`"]
    nbytes: Annotated[int, "bytes in RAM"]
    private_nbytes: Annotated[int, "bytes of them that no other process has"]
    how: Annotated[str, "how it is known"]
    growth_bytes: Annotated[int | None, "growth of `nbytes` in `growth_s`; null without `--seconds`"]


class ChildRecord(TypedDict):
    """A process, as an entry in a list."""

    pid: Annotated[int, "its number"]
    name: Annotated[str, "its command"]
    rss_bytes: Annotated[int, "bytes in RAM"]
    pss_bytes: Annotated[int, "the same, with each shared page divided by the number of its processes"]
    uss_bytes: Annotated[int, "bytes that no other process has"]
    shared_bytes: Annotated[int, "bytes that others have too"]
    growth_bytes: Annotated[
        int | None,
        "growth of `uss_bytes` in the time of `--seconds`; null without it, or if the process is new",
    ]


class DeviceMemoryRecord(TypedDict):
    """The memory of a device that the process uses. It is not in the rows of the process."""

    device: Annotated[str, "its name, such as `cuda:0`"]
    used_bytes: Annotated[int, "bytes in use, by all processes together"]
    capacity_bytes: Annotated[int, "all of its memory"]
    rows: Annotated[dict[str, int], "bytes by row; they sum to `used_bytes`"]


class ProcessRecord(TypedDict):
    """The memory of one process: `memwatch ps --json PID`. Without a PID it prints a list of `ChildRecord`."""

    pid: Annotated[int, "its number"]
    name: Annotated[str, "its command"]
    rss_bytes: Annotated[int, "bytes in RAM"]
    pss_bytes: Annotated[int, "the same, with each shared page divided by the number of its processes"]
    uss_bytes: Annotated[int, "bytes that no other process has"]
    coverage: Annotated[float, "share of `rss_bytes` in rows that name a cause"]
    rows: Annotated[list[RowRecord], "parts that sum to `rss_bytes`, largest first"]
    children: Annotated[list[ChildRecord], "the processes that it started"]
    devices: Annotated[
        list[DeviceMemoryRecord], "the devices that it uses; known only in reports of the process itself"
    ]
    growth_s: Annotated[float | None, "seconds between two readings of `memwatch ps --seconds`; else null"]
    notes: Annotated[list[str], "sentences about data that could not be read"]


class LimitRecord(TypedDict):
    """A limit on the memory of a process."""

    name: Annotated[str, "the words for it, with the folder of the control group"]
    limit_bytes: Annotated[int, "the limit"]
    used_bytes: Annotated[int, "bytes in use that count, without cached files"]


class HeldGroupRecord(TypedDict):
    """The live tensors of one category that one holder keeps on one device."""

    device: Annotated[str, "where they are"]
    category: Annotated[
        str, "`parameter`, `buffer`, `gradient`, `optimizer state`, `saved for backward`, ..."
    ]
    holder: Annotated[str, "the variable, attribute or container that keeps them"]
    nbytes: Annotated[int, "their bytes"]
    float32_bytes: Annotated[int, "bytes among them of float32"]
    largest_bytes: Annotated[int, "bytes of the largest storage"]
    is_kept: Annotated[bool, "whether an attribute or a container keeps them"]
    count: Annotated[int, "number of storages"]


class ContainerRecord(TypedDict):
    """A large container of Python."""

    kind: Annotated[str, "its class"]
    holder: Annotated[str, "the variable or attribute that keeps it"]
    entries: Annotated[int, "number of entries"]
    nbytes: Annotated[int, "bytes of its entries, from a sample of them"]


class ChangeRecord(TypedDict):
    """A change to the program that would have saved memory."""

    change: Annotated[str, "what to do"]
    category: Annotated[str, "the memory that it concerns"]
    saved_bytes: Annotated[int, "bytes that it would save"]
    is_upper_bound: Annotated[bool, "whether it saves less if the program needs a part of the memory anyway"]
    basis: Annotated[str, "`estimated`: computed from the live bytes, not measured"]


class ReservedRecord(TypedDict):
    """The memory that the caching allocator of a device holds."""

    device: Annotated[str, "the device"]
    reserved_bytes: Annotated[int, "bytes that it took from the device"]
    allocated_bytes: Annotated[int, "bytes of them in use"]
    free_bytes: Annotated[int, "bytes of them that it could hand out"]
    largest_free_bytes: Annotated[int, "bytes of the largest free block"]


class LookRecord(TypedDict):
    """The memory of the process at one time before."""

    time_s: Annotated[float, "seconds since the epoch"]
    rss_bytes: Annotated[int, "bytes in RAM"]


class OutOfMemoryRecord(TypedDict):
    """The report on memory that ran out: the file `*.oom.json` of `MEMWATCH=oom`."""

    program: Annotated[str, "its name"]
    pid: Annotated[int, "number of the process"]
    time_s: Annotated[float, "seconds since the epoch"]
    error: Annotated[str, "class and text of the error; empty if a limit was nearly reached"]
    asked_bytes: Annotated[int | None, "the request that failed, where the error has it"]
    in_worker: Annotated[bool, "whether another process or thread raised the error first"]
    limit: Annotated[LimitRecord | None, "the limit that was nearly reached"]
    limits: Annotated[list[LimitRecord], "all limits, the limit with the least room first"]
    live: Annotated[
        list[HeldGroupRecord], "live tensors, numpy arrays and large Python objects, largest group first"
    ]
    containers: Annotated[list[ContainerRecord], "large containers of Python"]
    changes: Annotated[list[ChangeRecord], "the changes that would have left room"]
    reserved: Annotated[list[ReservedRecord], "the devices with a caching allocator"]
    process: Annotated[ProcessRecord | None, "the rows of the process"]
    recent: Annotated[list[LookRecord], "the memory of the process at the latest looks"]
    notes: Annotated[list[str], "sentences about facts that are not known"]


RECORDS: tuple[type, ...] = (
    SummaryRecord, ReadingsRecord, ProcessPartsRecord,
    PeakRecord, GroupRecord, StorageRecord, HeldStorageRecord, FindingRecord, WayRecord, NoteRecord,
    LiveRecord, TreeRecord, StatsRecord, DevicePeakRecord, AllocatedRecord, DifferenceRecord, SiteRecord, PlanRecord,
    ReplayRecord, EstimateRecord, SettingRecord, EarlierLineRecord, TuneRecord,
    ProcessRecord, RowRecord, ChildRecord, DeviceMemoryRecord, OutOfMemoryRecord, LimitRecord, HeldGroupRecord,
    ContainerRecord, ChangeRecord, ReservedRecord, LookRecord,
)  # fmt: skip
"""All records, in the order of the page of documentation."""
