"""Advice in one sentence: the holder's fault, the change, and the peak after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch.analysis.findings.kinds import FindingKind
from memwatch.analysis.holders import HolderKind
from memwatch.edges import EdgeKind
from memwatch.sizes import format_bytes
from memwatch.words import findings as words
from memwatch.words.places import short_place

if TYPE_CHECKING:
    from memwatch.analysis.holders import Holder

_OWN_NAMES: Final = (HolderKind.ARGUMENT, HolderKind.LOCAL, HolderKind.GLOBAL, HolderKind.ATTRIBUTE)
"""Kinds of holders whose name the program chose: "do not make it" is an advice that its author can follow."""

_ESTIMATED: Final = (FindingKind.OPTIMIZER,)
"""Kinds whose mended program makes other temporaries: how many a loop over parameters has at once is not recorded."""


def change_of(
    kind: FindingKind,
    nbytes: int,
    holder: Holder,
    last_used: str,
    made_at: str,
    *,
    is_trained: bool,
    rate_bytes: int,
) -> str:
    """Return the memory that a finding is about, and the change that frees it.

    Args:
        kind: the kind of finding.
        nbytes: its bytes.
        holder: the holder of these bytes.
        last_used: `file:line` of their last use; "" if unknown.
        made_at: `file:line` that made most of them; "" if unknown.
        is_trained: whether a backward reads tensors that the same lines saved at another time.
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
    headline = kind.headline.format(nbytes=format_bytes(nbytes))
    if rate_bytes:
        headline = words.PER_ROUND.format(headline=headline, rate=format_bytes(rate_bytes))
    return words.CHANGE.format(headline=headline, advice=advice)


def with_peaks(
    kind: FindingKind, change: str, *, peak_bytes: int, alone_bytes: int, together_bytes: int
) -> str:
    """Return a change with the peak after it.

    Args:
        kind: the kind of finding.
        change: its change, from `change_of`.
        peak_bytes: the peak.
        alone_bytes: the peak after this change alone.
        together_bytes: the peak after all changes.
    """
    alone, together = format_bytes(alone_bytes), format_bytes(together_bytes)
    if kind in _ESTIMATED:
        alone, together = words.ABOUT.format(nbytes=alone), words.ABOUT.format(nbytes=together)
    if alone_bytes < peak_bytes:
        template = words.ALONE if together == alone else words.ALONE_AND_TOGETHER
    elif together == alone:
        return change
    else:
        template = words.TOGETHER
    return template.format(change=change, alone=alone, together=together)


def _what_to_do(kind: FindingKind, holder: Holder) -> str:
    drop = words.DROP.get(holder.kind.value, words.DROP_ANY)
    if kind is FindingKind.STALE:
        of_interpreter = any(edge.kind is EdgeKind.LAST_EXCEPTION for edge in holder.edges)
        return words.LAST_EXCEPTION if of_interpreter else words.STALE.get(holder.kind.value, drop)
    if kind is FindingKind.LAG and holder.kind is HolderKind.EVALUATION_STACK:
        return words.LAG_IN_CALL
    if kind is FindingKind.VOID and holder.kind not in _OWN_NAMES:
        return drop
    return kind.advice or drop
