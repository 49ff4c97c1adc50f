"""Compute the figures that every view shows: the place of the peak, its content, and the bytes saved for backward.

`repeated_layers` shows how the bytes saved for backward grow with the number of layers (the question of
lightning-thunder #871). `describe_meta` returns the metadata of a recording as lines of text: command, date, versions,
device.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from memwatch.analysis.findings.finding import LEAST_RATIO
from memwatch.analysis.tables import TEXT
from memwatch.capture.columns import NOT_RECORDED
from memwatch.capture.schema import EVIDENCE
from memwatch.kinds.findings import FindingKind
from memwatch.kinds.roles import CATEGORY_OF, KEPT_ON_PURPOSE
from memwatch.sizes import format_bytes, format_duration
from memwatch.text import visible
from memwatch.words import summary as words
from memwatch.words.findings import PEAK, PEAK_SO_FAR, added_phrase
from memwatch.words.holders import short_inferred
from memwatch.words.places import own_place, short_own_place
from memwatch.words.processes import PARTS, PROGRAM_FAILED, counted, parts_text
from memwatch.words.storages import short_op
from memwatch.words.ways import OTHER_OPTIMIZERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memwatch.analysis.findings.finding import Finding
    from memwatch.analysis.reading import DeviceReading

HELD_ANYWAY: Final = (*KEPT_ON_PURPOSE, "input", "held")
"""Categories whose storages stay alive with or without backward."""
BLANK: Final = {
    "module": "(top level)",
    "op_name": "(before the block)",
    "line": "(no line)",
    "holder": "(unknown)",
    "holder_kind": "(unknown)",
    "phase": "(unknown)",
}
"""Text that a view prints where a column of a storage is empty."""
_NO_BYTES: Final = "No tensor memory was recorded"
_MATTERS_RATIO: Final = 0.1
_MATTERS_BYTES: Final = 256 << 20
"""A summary describes the process if memory outside tensors grew by at least this many bytes, and by at least
`_MATTERS_RATIO` of RSS. The imports of a program under `memwatch run` add 70 MiB without a library and 160 MiB with
transformers. We measured 20 steps of three programs. malloc kept 490 MiB of freed blocks for a GPT (55 % of RSS) and
540 MiB for a convolution. A program that fragments its blocks grew by 2 GiB (85 %)."""
_CLOSE_RATIO: Final = 0.9
"""If the second line has at least this part of the first line's bytes, the headline names both. A guess."""
_MUCH_RATIO: Final = 1 / 4
"""The headline names a variable that keeps at least this part of the peak across iterations. A guess."""
_NUMBERED: Final = re.compile(r"(?:(.*)\.)?\d+")
"""The name of a module that ends with a number, such as `blocks.3`. Its group is the name of the parent."""
VERSIONS: Final = ("memwatch", "torch", "python")
SHOWN_ELSEWHERE: Final = frozenset(
    {*VERSIONS, "argv", "start_ns", "started_s", "end_ns", "complete"}
    | {"entry_allocated_bytes", "entry_reserved_bytes", "rounding_bytes", "segments", "expressions"}
    | {"ended_by", "processes_started_ns"}
    | {"changed_arguments", "grown_lists", "changed_attributes", "computes_in_bfloat16", "is_all_adagrad"}
    | {"reads_in_python"}
)
"""Entries of the metadata that `describe_meta` does not list by their keys."""
LABELS: Final = {
    "holder_samples": "searches for holders",
    "holder_samples_cut": "searches that were cut short",
    "holder_samples_ns": "time of searches",
    "intercept": "interceptor",
    "reserved_bytes": "reserved by allocators",
    "threads_before": "threads before the block",
    "threads_at_work_before": "of these, at work in it",
    "threads_unheard": "threads not recorded",
    "stacks": "call stacks",
    "allocator": "events of the allocator",
    "holders": "holders searched for",
    "estimate": "on fake tensors",
}
"""Labels of entries of the metadata. Other entries have their key as the label."""
DURATIONS: Final = ("holder_samples_ns",)
"""Entries of the metadata in nanoseconds."""
SIZES: Final = ("reserved_bytes",)
"""Entries of the metadata that have bytes for each device."""


@dataclass(frozen=True, slots=True)
class PeakInstant:
    """The instant of the peak: the row of the timeline, and the op that ran (-1 for none)."""

    event: int
    time_ns: int
    op: int
    op_name: str
    line: str
    module: str
    phase: str
    own_line: str = ""
    otherwise: str = "Before the first op"
    """The text if neither an op nor a line is known."""
    is_any: bool = field(default=True, kw_only=True)
    """Whether there were live bytes. Without live bytes, no instant is the peak."""

    def __str__(self) -> str:
        """The op, its module and its line with the whole path, for people."""
        return self._text(own_place(self.line, self.own_line))

    def short(self) -> str:
        """Return the op, its module and its line, without folders."""
        return self._text(short_own_place(self.line, self.own_line))

    def _text(self, place: str) -> str:
        if self.op < 0:
            return f"Allocation at {place}" if place else self.otherwise
        module = f" in module `{self.module}`" if self.module else ""
        return f"Op {self.op:,}, {short_op(self.op_name)}{module} ({self.phase}){f' at {place}' if place else ''}"


@dataclass(frozen=True, slots=True)
class SavedForBackward:
    """How much of the peak autograd keeps for backward."""

    nbytes: int
    """Bytes of the storages at the peak that hold saved tensors, each counted once."""

    held_anyway_bytes: int
    """The part of `nbytes` in parameters, inputs and other storages that would be alive without backward too."""

    peak_bytes: int

    @property
    def share_ratio(self) -> float:
        """Share of the peak that is there for backward only, 0 to 1."""
        return (self.nbytes - self.held_anyway_bytes) / self.peak_bytes if self.peak_bytes else 0.0


def is_recorded(reading: DeviceReading, what: str) -> bool:
    """Return False for facts that the source of a reading does not record, such as the "uses" of a memory snapshot."""
    return what not in reading.meta.get(NOT_RECORDED, ())


def process_text(reading: DeviceReading, *, always: bool = False) -> str:
    """Return a sentence about the process when its RSS was highest; "" if memory outside tensors grew little.

    Args:
        reading: the profile.
        always: whether to return the sentence even if this memory grew little.
    """
    process = reading.process
    if not len(process):
        return ""
    rows: list[dict[Any, Any]] = process.to_dict("records")
    entry, largest = rows[0], max(rows, key=lambda row: row["rss_bytes"])
    new_bytes = sum(
        largest[name] - entry[name] for name in ("python_bytes", "python_free_bytes", "malloc_free_bytes")
    )
    # all of them are new, because `entry_bytes` counts other memory from before the recording
    new_bytes += largest["other_bytes"]
    if not always and new_bytes < max(_MATTERS_BYTES, _MATTERS_RATIO * largest["rss_bytes"]):
        return ""
    return parts_text(largest["rss_bytes"], {name: largest[name] for name in PARTS})


def evidence_bytes(reading: DeviceReading) -> dict[str, int]:
    """Return the bytes at the peak by the evidence for their holders; empty if holders were not recorded."""
    sums = reading.at_peak.groupby("holder_evidence")["nbytes"].sum()
    return {evidence: int(sums[evidence]) for evidence in EVIDENCE if evidence in sums}


def listed_ways(reading: DeviceReading) -> pd.DataFrame:
    """Return `reading.ways` in the order for people: first the changes after which the program trains as before.

    Another optimizer often has the lowest peak of all, but this change costs a user most, so it comes last. SparseAdam
    for the embeddings counts as another optimizer. A change that a finding advises, such as `fused`, is left out here.
    """
    kinds_in_findings = {str(finding.kind) for finding in reading.findings}
    kinds_in_findings &= {str(kind) for kind in FindingKind if kind.row.is_way}
    ways = reading.ways[~reading.ways["kind"].isin(kinds_in_findings)]
    uses_sparse_adam = ways["lines"].str.contains("SparseAdam", regex=False)
    is_other = ways["kind"].isin(tuple(OTHER_OPTIMIZERS)) | uses_sparse_adam
    # False sorts before True: other optimizers come last
    listed: pd.DataFrame = ways.loc[is_other.sort_values(kind="stable").index].reset_index(drop=True)
    return listed


def way_ranks(reading: DeviceReading) -> list[int | None]:
    """Return the rank in `listed_ways` of each change of `reading.ways`, from 1; None for the other changes."""
    listed = [(way.kind, way.lines) for way in listed_ways(reading).itertuples()]
    ways = [(way.kind, way.lines) for way in reading.ways.itertuples()]
    return [listed.index(way) + 1 if way in listed else None for way in ways]


def shown_ways(found: pd.DataFrame, most: int) -> tuple[list[int], int]:
    """Return the rows of the changes that a view shows, and the row of the change whose code it shows.

    The view shows the code of the first change that needs no decision, or of the first change if all need one. If the
    change with the code is not among the first `most` changes, it replaces the last of them.

    Args:
        found: the changes, from `listed_ways`.
        most: how many changes the view shows.
    """
    ready = found.index[found["decision"] == ""]
    chosen = int(ready[0]) if len(ready) else 0
    shown = list(range(min(most, len(found))))
    if chosen not in shown:
        shown[-1] = chosen
    return shown, chosen


def growing(reading: DeviceReading) -> Finding | None:
    """Return the largest finding about memory that grows with each step or pass, if there is one."""
    return next((finding for finding in reading.findings if finding.growth_bytes), None)


def cut_off_text(reading: DeviceReading, *, names_error: bool = True) -> str:
    """Return a sentence about a recording that ended before the program's work did; "" for a whole recording.

    Args:
        reading: the recording.
        names_error: whether to name the class of the error. A page without sources leaves it out, because the class may
            be the program's own.
    """
    cut = reading.cut_off
    if cut is None:
        return ""
    ended = words.NOT_WHOLE
    if any(kind == PROGRAM_FAILED for kind, _ in reading.notes):
        has_name = cut.error and names_error
        ended = words.ENDED_BY.format(error=visible(cut.error)) if has_name else words.ENDED_WITH_ERROR
    when = ""
    if cut.iterations is not None:
        iterations = counted(cut.iterations, "iteration")
        when = (
            words.AFTER_ITERATIONS.format(iterations=iterations)
            if cut.iterations
            else words.IN_FIRST_ITERATION
        )
    return words.CUT_OFF.format(ended=ended, when=when)


def headline(reading: DeviceReading) -> str:
    """Return sentences about the largest part of the peak, its main line and the first change; "" for an empty peak."""
    at_peak = reading.at_peak
    all_bytes = int(at_peak["nbytes"].sum())
    lines = bytes_by_line(at_peak[at_peak["line"] != ""])["nbytes"]
    if not all_bytes or lines.empty:
        return ""
    if (growth := growing(reading)) is not None:
        return words.HEADLINE_GROWTH.format(
            rate=format_bytes(growth.growth_bytes),
            holder=visible(growth.holder.removesuffix(growth.remark)),
            nbytes=format_bytes(growth.nbytes),
            share=f"{100 * growth.nbytes / reading.peak_bytes:.0f} %",
            added=added_phrase(growth.added_at),
            the_peak=_the_peak(reading),
            peak=format_bytes(growth.predicted_peak_bytes),
        )
    categories = bytes_by(at_peak, "category")["nbytes"]
    shares = [f"{100 * nbytes / all_bytes:.0f} %" for nbytes in lines.iloc[:2]]
    is_close = len(lines) > 1 and lines.iloc[1] >= _CLOSE_RATIO * lines.iloc[0]
    text = (words.HEADLINE_TWO_LINES if is_close else words.HEADLINE).format(
        share=f"{100 * categories.iloc[0] / all_bytes:.0f} %",
        category=CATEGORY_OF[categories.index[0]].phrase,
        line_share=shares[0],
        line=visible(lines.index[0]),
        second_share=shares[-1],
        second=visible(lines.index[-1 if len(lines) < 2 else 1]),
    )
    text += _held_text(reading)
    changes = listed_ways(reading)
    way_bytes = int(changes["peak_bytes"].iloc[0]) if len(changes) else None
    if not reading.findings:
        return (
            text
            if way_bytes is None
            else text + _headline_of_ways(changes, words.HEADLINE_WAY, _the_peak(reading))
        )
    first = reading.findings[0]
    sentence = words.HEADLINE_FINDING if len(reading.findings) > 1 else words.HEADLINE_ONE_FINDING
    finding_bytes = first.predicted_peak_bytes
    # the first finding alone lowers nothing if other memory is as large at another instant
    if finding_bytes >= reading.peak_bytes:
        finding_bytes, sentence = first.together_peak_bytes, words.HEADLINE_FINDINGS
    text += sentence.format(the_peak=_the_peak(reading), peak=format_bytes(finding_bytes))
    if way_bytes is None or way_bytes >= finding_bytes:
        return text
    is_included = str(first.kind) in str(changes["kind"].iloc[0]).split(" + ")
    sentence = words.HEADLINE_INCLUDED if is_included else words.HEADLINE_INSTEAD
    return text + _headline_of_ways(changes, sentence, _the_peak(reading))


def no_tensor_text(reading: DeviceReading) -> str:
    """Return sentences about a recording without tensor memory, and what to do; "" for any other recording."""
    if reading.peak_bytes:
        return ""
    is_whole = reading.meta.get("complete", True)
    return f"{_NO_BYTES}. {words.NO_TENSOR if is_whole else words.NOTHING_WRITTEN}"


def _held_text(reading: DeviceReading) -> str:
    """Return a sentence about the variable that keeps the most bytes across iterations.

    Return "" if these bytes are less than `_MUCH_RATIO` of the peak, or if a finding names them. Findings don't name
    memory that the program may still need, such as the outputs of all steps of an evaluation.
    """
    at_peak = reading.at_peak
    across = at_peak[(at_peak["category"] == "held") & (at_peak["holder"] != "")]
    if across.empty:
        return ""
    holder = str(bytes_by(across, "holder").index[0])
    # of all categories: results of the last iteration are not "held" yet
    kept = at_peak[at_peak["holder"] == holder]["nbytes"]
    nbytes, count = int(kept.sum()), len(kept)
    in_findings = {storage for finding in reading.findings for storage in finding.storages}
    if nbytes < _MUCH_RATIO * reading.peak_bytes or not in_findings.isdisjoint(kept.index):
        return ""
    return words.HEADLINE_HELD.format(
        holder=visible("".join(short_inferred(holder))),
        nbytes=format_bytes(nbytes),
        share=f"{100 * nbytes / reading.peak_bytes:.0f} %",
        storages=counted(count, "storage"),
    )


def small_growth(reading: DeviceReading) -> Finding | None:
    """Return the largest small finding about memory that grows, if there is one."""
    found = (finding for finding in reading.small_findings if finding.growth_bytes)
    return next(found, None)


def small_growth_text(reading: DeviceReading) -> str:
    """Return a sentence about the memory of `small_growth`; "" if there is none."""
    grown = small_growth(reading)
    if grown is None:
        return ""
    holder = visible(grown.holder.removesuffix(grown.remark))
    return words.SMALL_GROWTH.format(rate=format_bytes(grown.growth_bytes), holder=holder)


def small_bound(reading: DeviceReading) -> str:
    """Return the bound below which a finding is small. The peak is named if the peak increase is the same."""
    is_peak = reading.peak_increase_bytes == reading.peak_bytes
    return (words.SMALL_BOUND_OF_PEAK if is_peak else words.SMALL_BOUND).format(
        share=f"{100 * LEAST_RATIO:.0f} %"
    )


def finding_categories(finding: Finding, reading: DeviceReading) -> dict[str, int]:
    """Return the bytes of a finding at the peak by category, largest first; empty if one category has all of them.

    A reader compares the bytes of a finding with the table of categories. They can differ: the newest result in a
    container, for example, is still an activation. Other categories are ignored if their bytes change no printed digit.
    """
    at_peak = reading.at_peak
    sums = bytes_by(at_peak[at_peak.index.isin(finding.storages)], "category")["nbytes"]
    if not len(sums) or format_bytes(sums.iloc[0]) == format_bytes(sums.sum()):
        return {}
    return {str(category): int(nbytes) for category, nbytes in sums.items()}


def _the_peak(reading: DeviceReading) -> str:
    """Return the words for the peak. They differ if the recording was cut off, because the peak may still rise."""
    return PEAK if reading.cut_off is None else PEAK_SO_FAR


def _headline_of_ways(changes: pd.DataFrame, sentence: str, the_peak: str) -> str:
    """Return a sentence with the peak after the first change.

    If a view shows the code of a later change, the sentence begins with the peak after that change.

    Args:
        changes: the changes, from `listed_ways`.
        sentence: the sentence for a first change whose code is shown.
        the_peak: the words for the peak.
    """
    _, chosen = shown_ways(changes, most=len(changes))
    first, with_code = (format_bytes(int(changes["peak_bytes"].iloc[row])) for row in (0, chosen))
    if chosen:
        return words.HEADLINE_CODE.format(the_peak=the_peak, peak=with_code, first=first)
    return sentence.format(the_peak=the_peak, peak=first)


def evidence_text(nbytes: Mapping[str, int]) -> str:
    """Return `evidence_bytes` as shares, in one line for people; "" without bytes."""
    seen, structure, inferred, unseen = (nbytes.get(evidence, 0) for evidence in EVIDENCE)
    total = sum(nbytes.values())
    if not total:
        return ""
    guessed, unknown = round(100 * inferred / total), round(100 * unseen / total)
    known = 100 - guessed - unknown if seen + structure else 0  # so the percentages add up to 100
    parts = (
        (known, seen + structure, "seen or read from torch's records"),
        (guessed, inferred, "inferred"),
        (unknown, unseen, "not known"),
    )
    return ", ".join(f"{_percent(rounded, part, total)} % {how}" for rounded, part, how in parts if part)


def _percent(rounded: int, nbytes: int, total: int) -> str:
    if nbytes and not rounded:
        return "<1"
    return ">99" if rounded == 100 and nbytes < total else str(rounded)


def peak_instant(reading: DeviceReading) -> PeakInstant:
    """Return the event at which live bytes are at their maximum. The table `at_peak` describes it."""
    event = reading.peak_event
    row = reading.part("timeline", ["time_ns", "op", "storage"], [event]).iloc[0]
    if not reading.peak_bytes:
        return PeakInstant(event, int(row["time_ns"]), -1, "", "", "", "", otherwise=_NO_BYTES, is_any=False)
    steps = reading.steps
    if not steps["recorded"].all():
        step = int(steps["start_ns"].searchsorted(row["time_ns"], side="right")) - 1
        if step >= 0 and not steps["recorded"].iloc[step]:
            otherwise = f"In step {step}, which was not recorded"
            return PeakInstant(event, int(row["time_ns"]), -1, "", "", "", "", otherwise=otherwise)
    op = int(row["op"])
    is_known = op in reading.part("ops", ()).index
    if not is_known and is_recorded(reading, "ops"):
        return PeakInstant(event, int(row["time_ns"]), -1, "", "", "", "")
    if not is_known:
        return _peak_of_allocation(reading, event, row)
    columns = ("name", "line", "module", "phase", "own_line")
    cause = reading.part("ops", columns, [op]).iloc[0]
    return PeakInstant(event, int(row["time_ns"]), op, *(str(cause[column]) for column in columns))


def _peak_of_allocation(reading: DeviceReading, event: int, row: pd.Series[int]) -> PeakInstant:
    """Return the instant of the peak in a reading without ops. Its line is the line of the allocation."""
    storage, time_ns = int(row["storage"]), int(row["time_ns"])
    is_known = storage in reading.part("storages", ()).index
    columns = ["line", "own_line"]
    line, own_line = reading.part("storages", columns, [storage]).iloc[0] if is_known else ("", "")
    otherwise = "At the start of the history" if event == 0 else "At an allocation whose call is not recorded"
    return PeakInstant(event, time_ns, -1, "", str(line), "", "", str(own_line), otherwise)


def bytes_by_line(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes by line. For work in a library, it is the line of the program that called the library."""
    places = list(zip(rows["line"].tolist(), rows["own_line"].tolist(), strict=True))
    known = {place: own_place(*place) for place in dict.fromkeys(places)}
    whole = [known[place] for place in places]
    short = {text: short_own_place(*place) for place, text in known.items()}
    lines: pd.Series[str] = pd.Series(whole, index=rows.index, dtype=TEXT)
    # group by the whole path, because two files may have the same short name
    grouped = bytes_by(rows.assign(line=lines), "line")
    labels = [short.get(place) or place for place in grouped.index]
    short_named: pd.DataFrame = grouped.set_axis(pd.Index(labels, dtype=TEXT), axis="index")
    return short_named


def saved_for_backward(reading: DeviceReading) -> SavedForBackward:
    """Return the sums over the storages at the peak that hold saved tensors, each counted once."""
    saved, peak = reading.saved, reading.at_peak
    held = peak[peak.index.isin(saved.loc[saved["at_peak"], "storage"])]
    anyway = held[held["category"].isin(HELD_ANYWAY)]
    return SavedForBackward(int(held["nbytes"].sum()), int(anyway["nbytes"].sum()), reading.peak_bytes)


@dataclass(frozen=True, slots=True)
class Recomputed:
    """The tensors that backward computes again because forward did not keep them."""

    at_peak_bytes: int
    """Bytes at the peak that were computed again."""

    instead_bytes: int
    """Bytes of the recomputed tensors that ops of backward read, in the backward that reads the most. Without
    checkpoints, the program would keep at most these bytes more. It would keep fewer if the result of one checkpoint is
    the input of the next, because forward keeps that tensor anyway."""


def recomputed(reading: DeviceReading) -> Recomputed | None:
    """Return how much backward computes again, if the recording has any recomputed op."""
    phase = reading.part("ops", ["phase"], coded=True)["phase"]
    if not (phase == "recompute").any():
        return None
    in_backward = phase.isin(("backward", "recompute"))
    # for each op, the number of backwards that have begun
    backward = (in_backward & ~in_backward.shift(fill_value=False)).cumsum()
    storages = reading.part("storages", ["category", "last_use_op", "op", "nbytes"], coded=True)
    again = storages[(storages["category"] == "recomputed") & (storages["last_use_op"] >= 0)]
    read = again[phase.reindex(again["last_use_op"]).to_numpy() == "backward"]
    per_backward = read.groupby(backward.reindex(read["op"]).to_numpy())["nbytes"].sum()
    peak = reading.at_peak
    at_peak_bytes = int(peak.loc[peak["category"] == "recomputed", "nbytes"].sum())
    return Recomputed(at_peak_bytes, int(per_backward.max()) if len(per_backward) else 0)


def bytes_by(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return bytes and counts of storages, grouped by a column.

    Args:
        rows: storages, in the columns of `Reading.at_peak`.
        column: the column to group by.

    Returns:
        A frame with `nbytes` (bytes) and `count`, largest first; the index is the label, with the words of
        `BLANK` where the column is empty.
    """
    labels = rows[column].where(rows[column] != "", BLANK.get(column, "(none)"))
    sizes = rows.groupby(labels, sort=False)["nbytes"]
    grouped: pd.DataFrame = pd.DataFrame({"nbytes": sizes.sum(), "count": sizes.size()})
    largest_first: pd.DataFrame = grouped.sort_values("nbytes", ascending=False, kind="stable")
    return largest_first


@dataclass(frozen=True, slots=True)
class Layers:
    """Equal modules with numbers under one parent, such as the blocks of a transformer.

    Two modules are equal if they have the same class and equally many bytes of parameters. Modules without parameters
    are left out, because a larger model may have the same number of them. Unequal modules, such as the linear layers
    of an MLP, are left out because one figure cannot describe them.
    """

    name: str
    """Common name, such as ``blocks.*``."""

    class_name: str
    count: int
    saved_bytes: float
    """Median of the bytes at the peak that one module keeps only for backward. The module that runs at the peak may
    keep more or fewer bytes."""

    inclusive_bytes: float
    """Median of the bytes at the peak that belong to one module and its children."""

    twice_peak_bytes: float
    """The peak with twice as many layers."""

    def __str__(self) -> str:
        """One sentence for people."""
        return words.LAYERS.format(
            count=self.count,
            name=self.name,
            class_name=self.class_name,
            nbytes=format_bytes(self.saved_bytes),
            twice=2 * self.count,
            peak=format_bytes(self.twice_peak_bytes),
        )


def repeated_layers(reading: DeviceReading) -> Layers | None:
    """Return the repeated modules that save most for backward.

    Args:
        reading: a profile.

    Returns:
        The layers. None if fewer than two equal numbered modules save something.
    """
    modules, saved_bytes = reading.modules, only_for_backward(reading)
    parameter_bytes = _parameter_bytes(reading)
    groups: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
    for name, class_name, inclusive_bytes in zip(
        modules.index, modules["class_name"], modules["inclusive_bytes"], strict=True
    ):
        if (numbered := _NUMBERED.fullmatch(name)) and parameter_bytes[name]:
            member = (saved_bytes[name], inclusive_bytes)
            groups.setdefault((numbered[1] or "", class_name, parameter_bytes[name]), []).append(member)
    repeated = {key: group for key, group in groups.items() if len(group) > 1}
    medians = {
        key: tuple(median(column) for column in zip(*group, strict=True)) for key, group in repeated.items()
    }
    key = max(medians, key=lambda key: medians[key][0] * len(repeated[key]), default=None)
    if key is None or not medians[key][0]:
        return None
    count, (saved, inclusive) = len(repeated[key]), medians[key]
    # a module may save more than belongs to it, such as the output of the module before it
    twice_peak_bytes = reading.peak_bytes + count * max(inclusive, saved)
    return Layers(f"{key[0]}.*" if key[0] else "*", key[1], count, saved, inclusive, twice_peak_bytes)


def only_for_backward(reading: DeviceReading) -> pd.Series[int]:
    """Return for each module the bytes at the peak that it and its children keep only for backward."""
    modules = reading.modules
    own = own_only_for_backward(reading).reindex(modules.index, fill_value=0)
    parents = module_parents(modules.index.tolist(), modules["parent"].tolist())
    sums: pd.Series[int] = pd.Series(with_rows_below(own.tolist(), parents), modules.index)
    return sums


def module_parents(names: Sequence[str], parents: Sequence[str]) -> list[int]:
    """Return the row of each module's parent; -1 if the parent is not in the table.

    Args:
        names: qualified names, in the order of `Reading.modules`.
        parents: for each module the name of its parent, empty for a root.
    """
    row_of = {name: row for row, name in enumerate(names)}
    return [row_of.get(parent, -1) if parent else -1 for parent in parents]


def with_rows_below(sizes: list[int], parents: list[int]) -> list[int]:
    """Return for each row of a tree the sum of it and of all rows below it. A parent comes before its children."""
    sums = list(sizes)
    for row in reversed(range(len(sums))):
        if parents[row] >= 0:
            sums[parents[row]] += sums[row]
    return sums


def own_only_for_backward(reading: DeviceReading) -> pd.Series[int]:
    """Return the bytes at the peak that are kept only for backward, by the module that saved them.

    If several modules saved a storage, it counts for the first of them. So the sum is `nbytes - held_anyway_bytes` of
    `saved_for_backward`.
    """
    saved, peak = reading.saved, reading.at_peak
    alone = peak["nbytes"][~peak["category"].isin(HELD_ANYWAY)]
    rows = saved[saved["at_peak"] & saved["storage"].isin(alone.index)].drop_duplicates("storage")
    sums: pd.Series[int] = alone.loc[rows["storage"]].groupby(rows["module"].to_numpy()).sum()
    return sums


def _parameter_bytes(reading: DeviceReading) -> Counter[str]:
    """Return the bytes of parameters and buffers of each module and its children."""
    return _with_children(reading.modules.index, reading.modules["parameter_bytes"].tolist())


def _with_children(modules: Iterable[str], sizes: Iterable[int]) -> Counter[str]:
    """Return the sum of sizes by module. A size counts for its module and for each module above it."""
    sums: Counter[str] = Counter()
    for module, nbytes in zip(modules, sizes, strict=True):
        parts = module.split(".")
        for count in range(1, len(parts) + 1):
            sums[".".join(parts[:count])] += nbytes
    return sums


def describe_meta(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the metadata of a reading as (label, text) pairs; entries without a value are left out."""
    versions = ", ".join(f"{name} {meta[name]}" for name in VERSIONS if name in meta)
    state = "" if meta.get("complete", True) else "no: the program ended before the block did"
    lines = [
        ("command", _command(meta.get("argv"))),
        ("started", _date_text(meta.get("started_s"))),
        ("duration", _duration_of(meta)),
        ("complete", state),
        ("versions", versions),
    ]
    rest = [_described(key, meta[key]) for key in meta if key not in SHOWN_ELSEWHERE]
    return [(label, text) for label, text in lines + rest if text]


def _described(key: str, value: object) -> tuple[str, str]:
    label = LABELS.get(key, key.replace("_", " "))
    if key in SIZES:
        return label, _sizes_text(value)
    return label, format_duration(value) if key in DURATIONS and isinstance(value, int) else _value_text(
        value
    )


def _command(argv: object) -> str:
    if isinstance(argv, (list, tuple)):
        return shlex.join(map(str, argv))
    return _value_text(argv)


def _date_text(started_s: object) -> str:
    if not isinstance(started_s, (int, float)):
        return ""
    return datetime.fromtimestamp(started_s, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _duration_of(meta: Mapping[str, Any]) -> str:
    if "start_ns" not in meta or "end_ns" not in meta:
        return ""
    return format_duration(meta["end_ns"] - meta["start_ns"])


def _sizes_text(value: object) -> str:
    sizes = value if isinstance(value, Mapping) else {}
    return ", ".join(f"{format_bytes(int(nbytes))} on {name}" for name, nbytes in sizes.items())


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {text}" for name, text in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
