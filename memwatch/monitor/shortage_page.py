"""The report on memory that ran out as a page: one file without scripts.

The page of a capture bundles 0.4 MB of scripts and styles. Memory is short here, so this page needs none of it.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Final

from memwatch.monitor import shortage_text
from memwatch.sizes import format_bytes
from memwatch.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.monitor.shortage import Shortage

_HEAD: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="Content-Security-Policy"
content="default-src 'none'; style-src 'unsafe-inline'"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif }}
body {{ max-width: 70rem; margin: 2rem auto; padding: 0 1rem }}
h1 {{ font-size: 1.4rem }} h2 {{ font-size: 1.1rem; margin-top: 2rem }}
table {{ border-collapse: collapse; width: 100% }}
td, th {{ padding: .2rem .6rem; text-align: left; vertical-align: top; overflow-wrap: anywhere }}
td:first-child, th:first-child {{ text-align: right; white-space: nowrap; width: 7rem }}
meter {{ width: 8rem }} td:nth-child(2) {{ width: 9rem }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere }}
</style>
"""


def page_of(found: Shortage) -> str:
    """Return the page as HTML. All texts are escaped."""
    title = shortage_text.head_of(found)
    parts = [_HEAD.format(title=html.escape(visible(title))), f"<h1>{html.escape(visible(title))}</h1>"]
    if found.error:
        parts.append(f"<pre>{html.escape(visible(found.error))}</pre>")
    for device in found.devices:
        by_category = found.bytes_by_category(device)
        groups = [group for group in found.live.groups if group.device == device]
        parts.append(_table(f"Alive on {device}, by category", "category", by_category.items()))
        parts.append(
            _table(
                f"Alive on {device}, by holder",
                "holder",
                ((f"{group.holder} ({group.category})", group.nbytes) for group in groups),
            )
        )
    containers = (
        (f"{holder} (`{kind}` of {entries:,} entries)", nbytes)
        for kind, holder, entries, nbytes in found.large_containers
    )
    changes = (
        (f"{'at most: ' if each.is_upper_bound else ''}{each.change} ({each.basis})", each.saved_bytes)
        for each in found.changes
    )
    rows = () if found.rows is None else ((f"{row.row}: {row.how}", row.nbytes) for row in found.rows.rows)
    parts.append(_table("Large containers of Python", "holder", containers))
    parts.append(_table("Changes that would have left room", "change", changes))
    parts.append(_table("The process", "row, and how it is known", rows))
    parts.append(
        f"<h2>Everything as text</h2><pre>{html.escape(shortage_text.report_of(found))}</pre></html>"
    )
    return "\n".join(part for part in parts if part) + "\n"


def _table(title: str, what: str, rows: Iterable[tuple[str, int]]) -> str:
    """Return a table of texts and bytes, with a bar for each, or an empty text without rows."""
    listed = list(rows)
    if not listed:
        return ""
    most = max(1, *(nbytes for _, nbytes in listed))
    lines = (
        f'<tr><td>{format_bytes(nbytes)}</td><td><meter value="{nbytes / most:.4f}"></meter></td>'
        f"<td>{html.escape(visible(text))}</td></tr>"
        for text, nbytes in listed
    )
    header = f"<tr><th>bytes</th><th></th><th>{html.escape(what)}</th></tr>"
    return f"<h2>{html.escape(title)}</h2><table>{header}{''.join(lines)}</table>"
