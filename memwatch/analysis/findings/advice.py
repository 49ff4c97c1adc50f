"""Advice in one sentence: the holder's fault, the change, and the peak after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.analysis.holders import HolderKind
from memwatch.kinds.edges import EdgeKind
from memwatch.kinds.findings import FindingKind
from memwatch.sizes import format_bytes
from memwatch.words import findings as words
from memwatch.words.places import short_place

if TYPE_CHECKING:
    from memwatch.analysis.holders import Holder


def advise(
    kind: FindingKind,
    nbytes: int,
    holder: Holder,
    last_used: str,
    made_at: str,
    *,
    is_trained: bool,
    peak_bytes: int,
    alone_bytes: int,
    together_bytes: int,
    rate_bytes: int,
) -> str:
    """Return the advice of a finding.

    Args:
        kind: the kind of finding.
        nbytes: its bytes.
        holder: the holder of these bytes.
        last_used: `file:line` of their last use; "" if unknown.
        made_at: `file:line` that made most of them; "" if unknown.
        is_trained: whether a backward reads tensors that the same lines saved at another time.
        peak_bytes: the peak.
        alone_bytes: the peak after this change alone.
        together_bytes: the peak after all changes.
        rate_bytes: bytes that each pass of a loop adds; 0 without a series.
    """
    is_needed = kind is FindingKind.GRAPH and is_trained
    advice = words.GRAPH_OF_TRAINED_FORWARD if is_needed else _what_to_do(kind, holder)
    if (
        kind in (FindingKind.DRAG, FindingKind.OUTPUT, FindingKind.GROWTH)
        and last_used
        and not holder.foreign
    ):
        advice = words.LAST_USED.format(advice=advice, site=last_used)
    if kind is FindingKind.GRAPH and made_at not in ("", short_place(holder.site)):
        advice = words.FORWARD_AT.format(advice=advice, site=made_at)
    alone, together = format_bytes(alone_bytes), format_bytes(together_bytes)
    if kind.row.is_estimated:
        alone, together = words.ABOUT.format(nbytes=alone), words.ABOUT.format(nbytes=together)
    if alone_bytes < peak_bytes:
        template = words.ALONE if together == alone else words.ALONE_AND_TOGETHER
    else:
        template = words.NO_LOWER_PEAK if together == alone else words.TOGETHER
    headline = kind.row.headline.format(nbytes=format_bytes(nbytes))
    if rate_bytes:
        headline = words.PER_ROUND.format(headline=headline, rate=format_bytes(rate_bytes))
    return template.format(headline=headline, advice=advice, alone=alone, together=together)


def _what_to_do(kind: FindingKind, holder: Holder) -> str:
    drop = holder.kind.row.drop or words.DROP_ANY
    if kind is FindingKind.STALE:
        of_interpreter = any(edge.kind is EdgeKind.LAST_EXCEPTION for edge in holder.edges)
        return words.LAST_EXCEPTION if of_interpreter else holder.kind.row.stale or drop
    if kind is FindingKind.LAG and holder.kind is HolderKind.EVALUATION_STACK:
        return words.LAG_IN_CALL
    if kind is FindingKind.VOID and not holder.kind.row.has_own_name:
        return drop
    return kind.row.advice or drop
