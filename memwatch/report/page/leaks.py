"""Leaks as plain data, for the page of a profile and for a page of their own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from memwatch.kinds.leaks import LeakKind
from memwatch.report.meta import format_duration
from memwatch.report.page.privacy import PathHider
from memwatch.text import visible
from memwatch.words.leaks import (
    CYCLE,
    PATH_FROM_ROOT,
    beside_phrase,
    page_headline,
    page_to_do,
    sizes_of,
    sizes_phrase,
)
from memwatch.words.places import place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from memwatch.kinds.edges import Vertex
    from memwatch.leaks import Leak

MODEL_VERSION: Final = 1
_PLACE: Final = re.compile(r"(.+):\d+\b", re.DOTALL)


def leak_page_model(leaks: Sequence[Leak], *, title: str, source: bool) -> dict[str, Any]:
    """Turn leaks into what their own page shows: `title`, `totals`, `kinds` and `leaks`."""
    hide = visible if source else _hider(leaks)
    return {"model": MODEL_VERSION, "title": hide(title), **leak_model(leaks, hide)}


def leak_model(leaks: Sequence[Leak], hide: Callable[[str], str]) -> dict[str, Any]:
    """Turn leaks into what a section shows: `headline`, `to_do`, `totals`, `kinds` and `leaks`, largest first.

    Args:
        leaks: the leaks.
        hide: rewrites texts for the page.
    """
    ordered = sorted(leaks, key=lambda leak: -leak.nbytes)
    return {
        "headline": hide(page_headline(ordered, [_repeat(leak) for leak in ordered])) if ordered else "",
        "to_do": hide(page_to_do([leak.holder for leak in ordered])) if ordered else "",
        "totals": _sums(ordered),
        "kinds": [
            {
                "kind": kind,
                "meaning": kind.row.meaning,
                **_sums(leak for leak in ordered if leak.kind is kind),
            }
            for kind in LeakKind
            if any(leak.kind is kind for leak in ordered)
        ],
        "leaks": [_leak(leak, hide) for leak in ordered],
    }


def leak_files(leaks: Iterable[Leak]) -> set[str]:
    """Collect the source files that leaks name, as recorded and as their texts show them."""
    shown, files = set(), set()
    for leak in leaks:
        if leak.site:  # recorded as text
            match = _PLACE.match(leak.site)
            shown.add(match[1] if match else leak.site)
        for edge in (*leak.edges, *([leak.cut] if leak.cut else [])):
            files.add(edge.file)
            for vertex in (edge.owner, edge.target, edge.reader):
                files.update(_files(vertex))
    known = {file for file in files if file}
    return shown | known | {place(file, None) for file in known}


def _files(vertex: Vertex | None) -> Iterator[str | None]:
    while vertex is not None:
        yield vertex.file
        vertex = vertex.inner


def _sums(leaks: Iterable[Leak]) -> dict[str, Any]:
    counted = list(leaks)
    sizes = sizes_of(counted)
    return {
        "sizes": [{"device": visible(name), "nbytes": nbytes} for name, nbytes in sizes.items()],
        "text": sizes_phrase(sizes),
        "count": sum(leak.count for leak in counted),
        "groups": len(counted),
    }


def _repeat(leak: Leak) -> str:
    """Return the name of the call that each adds this much; "" if the figures are not of each call."""
    return leak.repeat if leak.per_call and leak.every == 1 else ""


def _leak(leak: Leak, hide: Callable[[str], str]) -> dict[str, Any]:
    # a cycle has been kept since its maker let go of it; what is retained says nothing by its age
    held = f"{format_duration(leak.held_s * 1e9)} so far" if leak.kind == "cycle" else ""
    return {
        "kind": leak.kind.value,
        "nbytes": leak.nbytes,
        "device": visible(leak.device),
        "count": leak.count,
        "repeat": leak.repeat if leak.per_call else "",
        "holder": hide(leak.holder),
        "reference": hide(leak.reference),
        "site": hide(leak.site or ""),
        "tensor": hide(leak.tensor),
        "path": [hide(line) for line in leak.path],
        "path_title": PATH_FROM_ROOT if leak.kind.is_reached else CYCLE,
        "advice": hide(leak.advice),
        "held": held,
        "beside": hide(beside_phrase(leak.beside)),
    }


def _hider(leaks: Sequence[Leak]) -> Callable[[str], str]:
    hide_paths = PathHider(leak_files(leaks))
    return lambda text: visible(hide_paths(text))
