"""Describe a failure: a sentence for the summary line, a section of details, and plain data for the report."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from memwatch.kinds.leaks import LeakKind
from memwatch.sizes import format_bytes
from memwatch.words.findings import FINDING, holder_at
from memwatch.words.leaks import CAUSE, MARK_FOR_LINES, failure_sentence, sizes_of
from memwatch.words.places import short_place, split_site
from memwatch.words.storages import short_op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.analysis.findings.finding import Finding
    from memwatch.kinds.edges import Edge
    from memwatch.leaks import Leak

_TYPED: Final = ("edges", "cut", "cuts", "cycle_length", "branch", "known")
LEAK_SECTION: Final = "memwatch leaked tensors"
PEAK_SECTION: Final = "memwatch peak memory"
FINDINGS_SECTION: Final = "memwatch avoidable memory"
"""The titles of the sections of a report."""
OWN_PEAK: Final = "The test's own peak is {own} ({device}); {before} were alive before it."
PROCESS_PEAK: Final = " The peak of the process is {peak}."


def leak_sentence(leaks: Sequence[Leak]) -> str:
    """Return one sentence with the leaked bytes and the holder of the largest part."""
    first = leaks[0]
    return failure_sentence(
        first.kind,
        sizes=sizes_of(leaks),
        count=sum(leak.count for leak in leaks),
        per_run=first.per_call,
        holder=first.holder,
        others=len(leaks) - 1,
        cause=first.cause,
    )


def leak_section(leaks: Sequence[Leak], *, is_marked: bool = False) -> str:
    """Return a description of every leak.

    Args:
        leaks: the leaks of one test.
        is_marked: whether the test has the mark that records lines, so that no hint has to name the mark.
    """
    texts = [str(leak) for leak in leaks]
    if not is_marked and any(leak.site is None and leak.kind is not LeakKind.HOOKS for leak in leaks):
        texts.append(MARK_FOR_LINES)
    return "\n\n".join(texts)


def peak_section(figures: dict[str, Any]) -> str:
    """Return a description of the body's allocations at its peak."""
    added, before = (format_bytes(figures[key]) for key in ("peak_increase_bytes", "baseline_bytes"))
    title = f"{added} at the peak ({figures['device']}); not counted: {before} alive at its start"
    return "\n".join([f"{title} (fixtures and earlier tests)", *top_lines(figures["top"])])


def findings_sentence(findings: Sequence[Finding]) -> str:
    """Return one sentence with the memory that the body could avoid and the holder of the largest part."""
    first = findings[0]
    more = f", and {len(findings) - 1} more" if len(findings) > 1 else ""
    largest = f"{format_bytes(first.nbytes)}, {first.kind}: {_place(first)}"
    return f"Avoidable memory: {largest} ({finding_cause(first)}){more}"


def findings_section(findings: Sequence[Finding], figures: dict[str, Any]) -> str:
    """Return a description of every finding, with the test's own peak now and after the change."""
    names = ("peak_increase_bytes", "baseline_bytes", "peak_bytes")
    own, before, peak = (format_bytes(figures[name]) for name in names)
    peaks = OWN_PEAK.format(own=own, device=figures["device"], before=before)
    if not all(_is_of_own_peak(each, figures) for each in findings):
        peaks += PROCESS_PEAK.format(peak=peak)
    texts = [f"{format_bytes(each.nbytes)}  {each.kind}: {_text_of(each, figures)}" for each in findings]
    return "\n\n".join([peaks, *texts])


def _text_of(finding: Finding, figures: dict[str, Any]) -> str:
    held = holder_at(finding.holder, short_place(finding.site), finding.remark)
    return FINDING.format(holder=held, advice=_own_advice(finding, figures))


def _own_advice(finding: Finding, figures: dict[str, Any]) -> str:
    """Return the advice with the peak of the test alone, because earlier tests may have left much more memory."""
    if not _is_of_own_peak(finding, figures):
        return finding.advice
    from memwatch.analysis.findings.search import with_peaks

    before_bytes = figures["baseline_bytes"]
    return with_peaks(
        finding.kind,
        finding.change,
        peak_bytes=figures["peak_bytes"] - before_bytes,
        alone_bytes=finding.predicted_peak_bytes - before_bytes,
        together_bytes=finding.together_peak_bytes - before_bytes,
    )


def _is_of_own_peak(finding: Finding, figures: dict[str, Any]) -> bool:
    """Return True if the peak after a change is known for the memory of the test alone.

    If the test or the change frees memory from before the test, such as old gradients, it is known only for the whole
    process.
    """
    before_bytes = figures["baseline_bytes"]
    frees_older = figures["peak_bytes"] != before_bytes + figures["peak_increase_bytes"]
    lowest_bytes = min(finding.predicted_peak_bytes, finding.together_peak_bytes)
    return bool(finding.change) and not frees_older and lowest_bytes >= before_bytes


def finding_cause(finding: Finding) -> str:
    """Return a short name for the findings that one edit would end, in all tests.

    Lines and sizes do not count, so the name survives edits of nearby code. The file counts with its folders.
    """
    from memwatch.leaks.cause import portable

    file = portable(split_site(finding.site)[0]) if finding.site else ""
    part = (str(finding.kind), _culprit(finding), file)
    return CAUSE.format(digest=hashlib.sha256(repr(part).encode("utf-8", "backslashreplace")).hexdigest()[:8])


def _culprit(finding: Finding) -> str:
    """Return the holder without the remark about its evidence, which only the section of the finding needs.

    Some holders end with a comma, because advice follows them in other texts.
    """
    return finding.holder.removesuffix(finding.remark).rstrip(",")


def _place(finding: Finding) -> str:
    """Return the holder with its line."""
    return holder_at(_culprit(finding), short_place(finding.site), "")


def finding_data(finding: Finding, figures: dict[str, Any]) -> dict[str, Any]:
    """Return a finding as plain data, for the report object and the JSON file.

    Args:
        finding: the finding.
        figures: the figures of its test, from `measure.describe`.
    """
    return {
        "kind": str(finding.kind),
        "cause": finding_cause(finding),
        "holder": _culprit(finding),
        "place": _place(finding),
        "nbytes": finding.nbytes,
        "remark": finding.remark,
        "site": finding.site,
        "advice": _own_advice(finding, figures),
        "predicted_peak_bytes": finding.predicted_peak_bytes,
    }


def top_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each allocation, and one more for each frame after the first."""
    lines = []
    for row in rows:
        where = row["stack"][0] if row["stack"] else row["line"] or "(no line)"
        plural = "s"[: row["count"] != 1]
        made = f"{row['count']} storage{plural}, {short_op(row['op'])}"
        lines.append(f"  {format_bytes(row['nbytes']):>12}  {where}  ({made})")
        lines += [f"  {'':>12}    from {frame}" for frame in row["stack"][1:]]
    return lines


def leak_data(leak: Leak) -> dict[str, Any]:
    """Return a leak as plain data, for the report object and the JSON file."""
    data = {field.name: getattr(leak, field.name) for field in fields(leak) if field.name not in _TYPED}
    edges = [edge_data(edge) for edge in leak.edges]
    beside = [list(row) for row in leak.beside]
    cuts = [edge_data(edge) for edge in leak.cuts]
    known = leak.known
    return data | {
        "kind": leak.kind.value,
        "path": list(leak.path),
        "beside": beside,
        "edges": edges,
        "cuts": cuts,
        "known": None
        if known is None
        else {"library": known.library, "what": known.what, "link": known.link},
    }


def edge_data(edge: Edge) -> dict[str, Any]:
    """Return a reference as plain data, which a program can match on instead of words."""
    return {
        "kind": edge.kind.name.lower(),
        "name": edge.name,
        "position": edge.position,
        "file": edge.file,
        "line": edge.line,
        "hidden": edge.hidden,
    }
