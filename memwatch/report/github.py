"""A comparison of two captures for GitHub: a table in its Markdown, and annotations at the lines that grew."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from memwatch.device_names import is_host
from memwatch.sizes import format_bytes, format_change
from memwatch.text import visible
from memwatch.words.places import current_folder
from memwatch.words.processes import counted
from memwatch.words.storages import file_remarks, short_site

if TYPE_CHECKING:
    from memwatch.analysis.compare import Comparison

MOST_ANNOTATIONS: Final = 10
"""GitHub shows this many errors of one step, and drops the others."""
_MOST_SITES: Final = 3
"""Sites that an annotation names. A guess: most lines make one or two kinds of tensors."""
_WITHOUT_FILE: Final = "<"
"""How Python begins the name of code that it reads from no file: `<string>`, `<stdin>`."""
_NOT_IN_CODE_SPAN: Final = re.compile(r"[`|\\]")


def markdown(compared: Comparison, *, rows: int, root: Path, allowed_ratio: float | None = None) -> str:
    """Return the comparison in GitHub's Markdown: a heading, and a table of the sites that changed.

    Args:
        compared: the comparison.
        rows: most sites to list.
        root: the folder of the repository; files in it are named relative to it.
        allowed_ratio: the growth that the user allows, if any.
    """
    lines = [f"### Memory peak: {_headline(compared)}", ""]
    if allowed_ratio is not None and compared.growth_ratio > allowed_ratio:
        lines += [f"The peak grew by more than the allowed {100 * allowed_ratio:g} %.", ""]
    for remark in file_remarks(compared.renamed_files, compared.old_files, compared.new_files):
        lines += [remark, ""]
    changed = compared.sites[compared.sites["delta_bytes"] != 0]
    if changed.empty:
        return "\n".join([*lines, "No site changed.", ""])
    shown = changed.head(rows)
    lines += [
        "| Change | Old | New | Category | Module | Site | Line |",
        "| ---: | ---: | ---: | --- | --- | --- | --- |",
    ]
    for site, old, new, delta in zip(
        shown.index, shown["old_bytes"], shown["new_bytes"], shown["delta_bytes"], strict=True
    ):
        category, module, name = site
        place = _place(compared.new_lines.get(site, ""), root)
        words = (module, short_site(name), "" if place is None else ":".join(map(str, place)))
        cells = (format_change(delta), format_bytes(old), format_bytes(new), category, *map(_code, words))
        lines.append(f"| {' | '.join(cells)} |")
    rest = changed["delta_bytes"].iloc[rows:]
    if len(rest):
        lines += ["", f"{counted(len(rest), 'more site')}: {format_change(rest.sum())}"]
    return "\n".join([*lines, ""])


def error_annotations(compared: Comparison, *, root: Path, allowed_ratio: float | None = None) -> list[str]:
    """Return a workflow command for each line that grew, the largest growth first.

    The list is empty if the peak grew by no more than the user allows. GitHub shows only lines of files in the
    repository. So lines of other files, and of code without a file such as `<string>`, get no annotation.
    """
    if compared.growth_ratio <= (allowed_ratio or 0.0):
        return []
    by_place: defaultdict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
    sites = compared.sites["delta_bytes"]
    for (category, module, name), delta in zip(sites.index.tolist(), sites.tolist(), strict=True):
        place = _place(compared.new_lines.get((category, module, name), ""), root)
        if place is not None and not os.path.isabs(place[0]) and not place[0].startswith(_WITHOUT_FILE):
            by_place[place].append((delta, f"{category}, {short_site(name)}"))
    grown = {place: sum(delta for delta, _ in parts) for place, parts in by_place.items()}
    largest = sorted((place for place in grown if grown[place] > 0), key=lambda place: -grown[place])
    return [
        _annotation(place, grown[place], by_place[place], compared) for place in largest[:MOST_ANNOTATIONS]
    ]


def repository_root() -> Path:
    """Return the folder of the repository that contains the working directory; without one, the working directory."""
    here = Path(current_folder() or "/")
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)


def _headline(compared: Comparison) -> str:
    grown = compared.new_peak_bytes - compared.old_peak_bytes
    share = f" ({100 * compared.growth_ratio:+.1f} %)" if compared.old_peak_bytes else ""
    where = "" if is_host(compared.device) else f" on {_code(compared.device)}"
    sizes = f"{format_bytes(compared.old_peak_bytes)} → {format_bytes(compared.new_peak_bytes)}"
    return f"{sizes}, {format_change(grown)}{share}{where}"


def _annotation(
    place: tuple[str, int], grown_bytes: int, parts: list[tuple[int, str]], compared: Comparison
) -> str:
    file, line = place
    title = f"{format_change(grown_bytes)} at the memory peak"
    named = [
        f"{format_change(delta)} {what}" for delta, what in sorted(parts, key=lambda part: -part[0]) if delta
    ]
    more = [f"{len(named) - _MOST_SITES} more"] if len(named) > _MOST_SITES else []
    sizes = f"{format_bytes(compared.old_peak_bytes)} -> {format_bytes(compared.new_peak_bytes)}"
    message = f"The peak went from {sizes}. This line: {'; '.join([*named[:_MOST_SITES], *more])}"
    properties = f"file={_property(file)},line={line},title={_property(title)}"
    return f"::error {properties}::{_data(visible(message))}"


def _place(line: str, root: Path) -> tuple[str, int] | None:
    """Return the file and the number of a `file:line`; None if the line is unknown.

    A file in the repository is relative to it.
    """
    file, _, number = line.rpartition(":")
    if not file or not number.isdecimal():
        return None
    if file.startswith(_WITHOUT_FILE):
        return file, int(number)
    path = os.path.realpath(file)
    within = os.path.relpath(path, os.path.realpath(root))
    return (within if not within.startswith(os.pardir + os.sep) else path), int(number)


def _data(text: str) -> str:
    """Escape text for the message of a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape text for a property of a workflow command, such as `title`."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _code(text: str) -> str:
    """Return text as code for a cell of a table, so that GitHub ignores markup, mentions and `|` in it.

    Programs differ in how they read an escaped backtick, `|` or backslash in a code span of Markdown. Text with one of
    these characters becomes an HTML element, and its special characters become character references.
    """
    shown = visible(text).strip()
    if not shown:
        return ""
    if not _NOT_IN_CODE_SPAN.search(shown):
        return f"`{shown}`"
    numbers = re.sub(r"[^\w ./-]|_", lambda match: f"&#{ord(match[0])};", shown)
    return f"<code>{numbers}</code>"
