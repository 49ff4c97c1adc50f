"""From explained survivors to leaks: one leak per reference to cut, if every measured run added to it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from memwatch.heap.names import place
from memwatch.leaks.advice import advice_for
from memwatch.leaks.holders import holder_words
from memwatch.leaks.leak import Leak

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.leaks.finding import Finding


def leaks_of(findings: Iterable[Finding], measured: set[int], *, per_call: bool) -> list[Leak]:
    """Group findings into leaks.

    Args:
        findings: the survivors, each with its holder.
        measured: indices of the measured runs.
        per_call: True to keep only what every measured run added to, and to count bytes per run.

    Returns:
        Leaks, largest first.
    """
    groups: dict[object, list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.kind, finding.key), []).append(finding)
    chosen = _growing(list(groups.values()), measured) if per_call else list(groups.values())
    leaks = [_leak(group, len(measured) if per_call else 1, per_call=per_call) for group in chosen]
    return sorted(leaks, key=lambda leak: -leak.nbytes)


def _growing(groups: list[list[Finding]], measured: set[int]) -> list[list[Finding]]:
    """Keep the groups with survivors of every run, and put together what the last run made look different.

    The newest tensor often has a holder of its own, a "last result" beside the list of all. So leftovers of one
    size that cover the measured runs are one group, named after the older ones: those were held by what stays.
    """
    grown: list[list[Finding]] = []
    leftover: dict[int, list[Finding]] = {}
    for group in groups:
        if measured <= _runs(group):
            grown.append(group)
        else:
            for finding in group:
                leftover.setdefault(finding.birth.nbytes, []).append(finding)
    pools: dict[object, list[Finding]] = {}
    for pool in leftover.values():
        if measured <= _runs(pool):
            oldest = min(pool, key=lambda finding: finding.birth.run)
            pools.setdefault((oldest.kind, oldest.key), []).extend(pool)
    return [*grown, *pools.values()]


def _runs(group: list[Finding]) -> set[int]:
    return {finding.birth.run for finding in group}


def _leak(group: list[Finding], runs: int, *, per_call: bool) -> Leak:
    # what the first measured run left has been held longest, by the reference that stays
    proven = [finding for finding in group if finding.birth.run == min(_runs(group))]
    shown = min(proven, key=lambda finding: (len(finding.steps), -finding.birth.nbytes))
    largest = max(
        group, key=lambda finding: (finding.birth.site is not None, finding.birth.nbytes, -len(finding.steps))
    )
    path = tuple(str(step) for step in shown.steps) or ("no Python reference: held by C code alone",)
    holder = holder_words(shown.steps, shown.holder, shown.kind)
    reference = shown.holder.words if shown.holder else holder
    keeps_graph = any(".grad_fn of" in step.words for finding in group for step in finding.steps)
    return Leak(
        kind=shown.kind,
        nbytes=sum(finding.birth.nbytes for finding in group) // runs,
        count=max(1, len(group) // runs),
        holder=holder,
        path=path,
        site=_site(group),
        advice=advice_for(shown.kind, reference, holder, path, graph=keeps_graph),
        tensor=largest.tensor,
        held_s=time.monotonic() - min(finding.birth.time_s for finding in group),
        per_call=per_call,
        reference=reference,
        keeps_graph=keeps_graph,
    )


def _site(group: list[Finding]) -> str | None:
    """Return the line that made what is held first: the tensor itself, rather than its activations."""
    known = [finding for finding in group if finding.birth.site is not None]
    if not known:
        return None
    file, line, function = min(known, key=lambda finding: len(finding.steps)).birth.site  # type: ignore[misc]
    return f"{place(file, line)} in {function}"
