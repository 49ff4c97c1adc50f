"""A failure in words and as data: a sentence for the summary line, a section of details, a dict for the report."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.leaks import Leak

LEAK_SECTION = "memwatch leaked tensors"
PEAK_SECTION = "memwatch peak memory"


def leak_sentence(leaks: Sequence[Leak]) -> str:
    """Return one sentence: what leaked, and who holds the largest part."""
    first = leaks[0]
    count = sum(leak.count for leak in leaks)
    each = " on each run" if first.per_call else ""
    more = f" (and {len(leaks) - 1} more)" if len(leaks) > 1 else ""
    verb = {"cycle": "freed only by gc: cycle through", "uncollectable": "never freed: loop through"}
    held = f"{verb.get(first.kind, 'kept alive by')} {first.holder}"
    total = format_bytes(sum(leak.nbytes for leak in leaks))
    return f"Test leaked {total} in {count} tensor{'s'[: count != 1]}{each}, {held}{more}"


def leak_section(leaks: Sequence[Leak]) -> str:
    """Return a description of every leak."""
    texts = [str(leak) for leak in leaks]
    if any(leak.site is None for leak in leaks):
        texts.append("To see where a tensor was made, mark the test: @pytest.mark.no_tensor_leaks")
    return "\n\n".join(texts)


def peak_section(figures: dict[str, Any]) -> str:
    """Return a description of what the body had allocated at its peak."""
    added, before = (format_bytes(figures[key]) for key in ("peak_increase_bytes", "baseline_bytes"))
    title = f"{added} at the peak ({figures['device']}); not counted: {before} alive at entry"
    return "\n".join([f"{title} (fixtures and earlier tests)", *top_lines(figures["top"])])


def top_lines(rows: Sequence[dict[str, Any]], indent: str = "  ") -> list[str]:
    """Return allocations as lines, one each, and one more for each frame beyond the first."""
    lines = []
    for row in rows:
        where = row["stack"][0] if row["stack"] else row["line"] or "(no line)"
        plural = "s"[: row["count"] != 1]
        made = f"{row['count']} storage{plural}, {row['op']}"
        lines.append(f"{indent}{format_bytes(row['nbytes']):>12}  {where}  ({made})")
        lines += [f"{indent}{'':>12}    from {frame}" for frame in row["stack"][1:]]
    return lines


def leak_data(leak: Leak) -> dict[str, Any]:
    """Return a leak as plain data, for the report object and the JSON file."""
    return {**asdict(leak), "path": list(leak.path)}
