"""The summary that a terminal shows: the total first, then what it is made of."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memwatch.analysis.findings.finding import LEAST_RATIO
from memwatch.errors import OptionError
from memwatch.kinds.roles import CATEGORY_OF
from memwatch.report.console import (
    Code,
    bar,
    category_style,
    clip,
    head,
    line_width,
    middle,
    name,
    tail,
    to_text,
)
from memwatch.report.facts import (
    bytes_by,
    bytes_by_line,
    cut_off_text,
    evidence_bytes,
    evidence_text,
    finding_categories,
    growing,
    headline,
    is_recorded,
    listed_ways,
    only_for_backward,
    peak_instant,
    process_text,
    recomputed,
    repeated_layers,
    saved_for_backward,
    shown_ways,
    small_bound,
    small_growth_text,
)
from memwatch.report.page.edits import ADDED, REMOVED, edit_of
from memwatch.report.page.parts import CodeReader
from memwatch.report.plan import Places
from memwatch.report.plan_terminal import plan_parts
from memwatch.sizes import format_bytes, format_duration
from memwatch.words import summary as words
from memwatch.words import ways
from memwatch.words.findings import ADDED_LINE, COUNTED_AS, EDIT, LINE_TO_CHANGE, holder_at
from memwatch.words.holders import short_inferred
from memwatch.words.places import short_place
from memwatch.words.processes import counted, listed, reserved_at_peak_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pandas as pd
    from rich.console import RenderableType

    from memwatch.analysis.findings.finding import Finding
    from memwatch.analysis.reading import DeviceReading
    from memwatch.planner.plan import Plan
    from memwatch.report.plan import Replayed

BAR_WIDTH: Final = 30
"""Characters of the longest bar. A guess."""
FIGURES_WIDTH: Final = 20
"""Characters that a size and a share take of a line."""
GAP: Final = 2
"""Blanks between columns."""
SCREEN_LINES: Final = 50
"""Lines of a summary, if no number of rows is given: a guess. Output is often piped, to a place without a height."""
ROWS: Final = 8
FEWEST_ROWS: Final = 2
"""Rows of each table, and the fewest if the summary must fit a screen. A guess."""
FEWEST_FINDINGS: Final = 3
"""A guess: findings say what to change, so more of them are shown than of the rows that only describe the peak."""
INDENT: Final = 4  # blanks before the lines below a heading
_MOST_CODE_LINES: Final = 40
"""Code of so many lines is shown even if the summary then has more lines than a screen. An optimizer that steps in the
backward with fused=True has 34 lines. Only the loss in parts has more than this limit, over 100."""
_EXPLAINED_RATIO: Final = 0.03
"""A guess: the name of a category with a smaller share of the peak is not explained."""


def summary(
    reading: DeviceReading,
    *,
    plan: Plan | None = None,
    result: Replayed | None = None,
    width: int | None = None,
    color: bool | None = None,
    rows: int | None = None,
    following: str | None = None,
    show_all: str | None = None,
) -> str:
    """Return the parts of the peak as text, what would lower it, and how a plan lowers it.

    By default the text has at most 50 lines, where that is possible: code of up to 40 lines is always shown.

    Args:
        reading: a profile, from `memwatch.profile` or `memwatch.load`.
        plan: a plan of this profile, shown after the parts of the peak.
        result: result of `memwatch.replay` on the plan.
        width: characters in a line; by default the terminal's, or COLUMNS.
        color: whether to colour; by default only on a terminal, and never with NO_COLOR.
        rows: most rows of the tables of storages, modules, lines and holders, and most findings and notes; half as
            many changes, but at least two. All categories are shown. By default as many as fit 50 lines.
        following: the last line, with the next step for the user. By default it is a call in Python; "" leaves it
            out.
        show_all: the command that shows the tables that are left out. By default it is a call in Python.

    Returns:
        The text, ending with a newline.

    Raises:
        OptionError: `rows` is not a whole number of 0 or more.
        PlanMismatchError: the result belongs to another plan.
    """
    if rows is not None and (not hasattr(rows, "__index__") or rows < 0):
        raise OptionError(f"rows={rows!r} is not a whole number of 0 or more")
    line = line_width(width)
    shared = _Shared(reading, line)

    def text_with(content: _Content) -> str:
        parts = _parts(shared, content, show_all)
        if plan is not None:
            parts += ["", *plan_parts(plan, result, Places(reading), content.rows, line)]
        if shared.notes:
            parts += ["", words.NOTES, *_notes(shared.notes, content.rows)]
        if following != "":
            parts += ["", _commands(following) if following else Text(words.NEXT_CALL, style="dim")]
        return to_text(*(_title(part) for part in parts), width=line, color=color)

    if rows is not None:
        return text_with(_Content(rows, rows))
    text = ""
    for content in _contents(_code_lines(shared)):
        text = text_with(content)
        if text.count("\n") <= SCREEN_LINES:
            # These parts fit with the fewest rows. What is left of the screen goes to more rows.
            fuller = (text_with(content.with_rows(count)) for count in range(ROWS, FEWEST_ROWS, -1))
            return next((longer for longer in fuller if longer.count("\n") <= SCREEN_LINES), text)
    return text


class _Content(NamedTuple):
    """What a summary shows: the most rows of each table, and which of the long parts it has."""

    rows: int
    findings: int
    with_modules: bool = True
    with_storages: bool = True
    with_lines: bool = True
    with_holders: bool = True
    with_code: bool = True

    def with_rows(self, count: int) -> _Content:
        return self._replace(rows=count, findings=max(count, self.findings))


class _Shared:
    """The figures and texts of one summary, each computed once.

    A summary is laid out with fewer and fewer parts until it fits a screen. Computing a figure takes longer, the more
    storages are alive at the peak, so all layouts share the figures.
    """

    def __init__(self, reading: DeviceReading, line: int) -> None:
        self.reading, self.line = reading, line

    @cached_property
    def headline(self) -> str:
        """The sentences about the largest part of the peak."""
        return headline(self.reading)

    @cached_property
    def above_tables(self) -> Text:
        """The lines above the tables."""
        return _headline(self.reading, self.headline)

    @cached_property
    def categories(self) -> pd.DataFrame:
        """The bytes at the peak by category."""
        return bytes_by(self.reading.at_peak, "category")

    @cached_property
    def modules(self) -> pd.DataFrame:
        """The modules with bytes at the peak, largest first."""
        held = self.reading.modules[self.reading.modules["inclusive_bytes"] > 0]
        largest_first: pd.DataFrame = held.sort_values("inclusive_bytes", ascending=False, kind="stable")
        return largest_first

    @cached_property
    def only_for_backward(self) -> pd.Series[int]:
        """The bytes of each module that are there for backward alone."""
        return only_for_backward(self.reading)

    @cached_property
    def lines(self) -> pd.DataFrame:
        """The bytes at the peak by line."""
        return bytes_by_line(self.reading.at_peak)

    @cached_property
    def has_holders(self) -> bool:
        """Whether the holder of any storage at the peak is known."""
        return bool((self.reading.at_peak["holder"] != "").any())

    @cached_property
    def holders(self) -> pd.DataFrame:
        """The bytes at the peak by kind of holder."""
        return bytes_by(self.reading.at_peak, "holder_kind")

    @cached_property
    def largest_holders(self) -> dict[str, pd.Series[int]]:
        """For each kind of holder that a screen may show, the bytes of each holder, largest first."""
        peak = self.reading.at_peak
        return {
            kind: bytes_by(peak[peak["holder_kind"] == kind], "holder")["nbytes"]
            for kind in self.holders.index
        }

    @cached_property
    def evidence(self) -> Text:
        """How memwatch knows the holders, and whether it cut searches for them short."""
        return _evidence(self.reading)

    @cached_property
    def below_tables(self) -> list[RenderableType]:
        """Lines about saved and recomputed tensors, and about the phases of the storages at the peak."""
        parts: list[RenderableType] = []
        if is_recorded(self.reading, "saved tensors"):
            parts += [*_saved(self.reading), *_recomputed(self.reading)]
        return [*parts, _phases(self.reading)] if is_recorded(self.reading, "uses") else parts

    @cached_property
    def small(self) -> list[RenderableType]:
        """Lines about small findings."""
        return _small(self.reading)

    @cached_property
    def ways(self) -> pd.DataFrame:
        """The changes that would lower the peak."""
        return listed_ways(self.reading)

    @cached_property
    def notes(self) -> list[tuple[str, str]]:
        """The notes about the recording."""
        return self.reading.notes


def _code_lines(shared: _Shared) -> int:
    """Return how many lines of code the summary shows: those of one change, or none."""
    found = shared.ways
    if found.empty or growing(shared.reading) is not None:
        return 0
    _, chosen = shown_ways(found, len(found))
    return str(found["lines"][chosen]).rstrip().count("\n") + 1


def _contents(code_lines: int) -> list[_Content]:
    """Return the layouts to try, the fullest first, all with the fewest rows.

    The summary uses the first layout that fits a screen. If none fits, it uses the last.
    """
    # Two rows of modules are the root and its first child, which say nothing. The code of a change is worth more than
    # the tables, which describe the peak: a user wants to know what to do.
    everything = _Content(FEWEST_ROWS, FEWEST_FINDINGS)
    no_modules = everything._replace(with_modules=False)
    no_storages = no_modules._replace(with_storages=False)
    no_lines = no_storages._replace(with_lines=False)
    no_holders = no_lines._replace(with_holders=False)
    contents = [everything, no_modules, no_storages, no_lines]
    if code_lines:
        contents.append(no_holders)
    if 0 < code_lines <= _MOST_CODE_LINES:
        return contents
    return contents + [part._replace(with_code=False) for part in (no_lines, no_holders)]


def _parts(shared: _Shared, content: _Content, show_all: str | None) -> list[RenderableType]:
    reading = shared.reading
    parts: list[RenderableType] = [shared.above_tables]
    if not reading.peak_bytes:
        is_whole = reading.meta.get("complete", True)
        parts.append(Text(words.NO_TENSOR if is_whole else words.NOTHING_WRITTEN))
    if len(reading.at_peak):
        parts.append("")
        parts += _made_of(shared, content)
        parts += _left_out(shared, content, show_all)
    if reading.findings:
        parts += [
            "",
            words.FINDINGS,
            *finding_parts(reading.findings, content.findings, reading, _code_of(reading)),
        ]
    parts += shared.small
    has_ways = len(shared.ways) > 0
    if has_ways and growing(reading) is not None:
        parts += ["", Text(ways.AFTER_GROWTH)]
    elif has_ways:
        parts += ["", *_ways(shared, max(content.rows // 2, 2), with_code=content.with_code)]
    elif not reading.findings and shared.has_holders:
        parts += ["", _no_way(reading)]
    return parts


_MUCH_SAVED_RATIO: Final = 0.5
"""Share of the peak from which checkpoints by hand are worth a sentence. A guess."""


def _no_way(reading: DeviceReading) -> str:
    text = ways.NO_WAY.format(share=f"{LEAST_RATIO * 100:.0f} %")
    ratio = saved_for_backward(reading).share_ratio
    may_checkpoint = ratio >= _MUCH_SAVED_RATIO and recomputed(reading) is None
    return ways.BY_HAND.format(no_way=text, saved=f"{100 * ratio:.0f} %") if may_checkpoint else text


def _made_of(shared: _Shared, content: _Content) -> list[RenderableType]:
    reading, rows, line = shared.reading, content.rows, shared.line
    parts: list[RenderableType] = [_categories(shared), *_meanings(shared), ""]
    if content.with_storages:
        parts += [words.STORAGES, _storages(reading, rows, line), ""]
    if content.with_modules and len(shared.modules):
        parts += [words.MODULES, _modules(shared, rows), ""]
    if content.with_lines:
        parts += [words.LINES, _lines(shared, rows), ""]
    if content.with_holders and shared.has_holders:
        parts += [words.HOLDERS, _holders(shared, rows), shared.evidence, ""]
    parts += shared.below_tables
    return parts if is_recorded(reading, "uses") else parts[:-1]


def _left_out(shared: _Shared, content: _Content, show_all: str | None) -> list[RenderableType]:
    """Return a line with the names of the tables that are left out; nothing if none is."""
    is_shown = {
        "storages": content.with_storages,
        "modules": content.with_modules or not len(shared.modules),
        "lines": content.with_lines,
        "holders": content.with_holders or not shared.has_holders,
    }
    tables = [name for name, shown in is_shown.items() if not shown]
    if not tables:
        return []
    names = listed(tables)
    text = words.LEFT_OUT_ONE if len(tables) == 1 else words.LEFT_OUT
    if show_all is None:
        return [Text(f"{text.format(tables=names)} {words.SHOW_ALL_CALL}", style="dim")]
    return [Text(text.format(tables=names), style="dim"), _commands(f"{' ' * INDENT}{show_all}")]


def _title(part: RenderableType) -> RenderableType:
    return Text(part, style="bold") if isinstance(part, str) else part


def _headline(reading: DeviceReading, sentences: str) -> Text:
    at = peak_instant(reading)
    text = Text("Peak ")
    text.append(format_bytes(reading.peak_bytes), style="bold red")
    text.append(f"{_sum(reading)} ({clip(reading.device, 40)})\n")
    when = (
        f", {format_duration(at.time_ns)} after the start"
        if at.is_any and is_recorded(reading, "times")
        else ""
    )
    text.append(clip(f"{at.short()}{when}"))
    if not _is_entry_and_increase(reading):
        entry, increase = format_bytes(reading.baseline_bytes), format_bytes(reading.peak_increase_bytes)
        text.append(f"\n{words.INCREASE_ELSEWHERE.format(entry=entry, increase=increase)}")
    if ended := cut_off_text(reading):
        text.append(f"\n{clip(ended)}", style="bold")
    if sentences:
        text.append(f"\n{sentences}", style="bold")
    text.append_text(_reserved(reading)).append_text(_other_devices(reading))
    process = process_text(reading)
    return text.append(f"\n{words.PROCESS.format(parts=process)}" if process else "")


def _is_entry_and_increase(reading: DeviceReading) -> bool:
    """Return True if the peak is the bytes at the start plus the peak increase.

    The sum differs if memory from before the block was freed by the time of the peak, or if the block's own memory was
    highest at another instant.
    """
    return reading.baseline_bytes + reading.peak_increase_bytes == reading.peak_bytes


def _sum(reading: DeviceReading) -> str:
    """Return the peak as a sum of two parts at its instant; empty if nothing was alive at the start."""
    if _is_entry_and_increase(reading):
        if not reading.baseline_bytes:
            return ""
        entry, increase = format_bytes(reading.baseline_bytes), format_bytes(reading.peak_increase_bytes)
        return words.PEAK_IS_ENTRY_AND_INCREASE.format(entry=entry, increase=increase)
    within = int(reading.at_peak["nbytes"][reading.at_peak["origin"] != "baseline"].sum())
    before, made = format_bytes(reading.peak_bytes - within), format_bytes(within)
    return words.PEAK_IS_BEFORE_AND_WITHIN.format(before=before, within=made)


def _reserved(reading: DeviceReading) -> Text:
    """Return a line about the bytes that an allocator reserved; empty for an allocator without a cache."""
    held = reading.reserved
    return Text() if held is None else Text(f"\n{clip(reserved_at_peak_text(held))}")


def _other_devices(reading: DeviceReading) -> Text:
    """Return a line for each other device, and how to see what its peak is made of."""
    others = [device for device in reading.devices if device != reading.device]
    text = Text()
    for device in others:
        there = reading.on(device)
        text.append("\nPeak ").append(format_bytes(there.peak_bytes), style="bold")
        text.append(f"{_sum(there)} ({clip(device, 40)})")
    if others:
        how = f'The tables are about {reading.device}; of {others[0]}: --device {others[0]}, prof.on("{others[0]}")'
        text.append(f"\n{clip(how)}", style="dim")
    return text


def _table(*headings: str) -> Table:
    """Return a table without lines. If a heading ends in `>`, its column holds numbers, aligned right.

    In a narrow terminal, names are cut and numbers are not. rich narrows only columns that may wrap, so columns of
    names may wrap. Their cells are made by `console.name`, which sets `no_wrap`, so rich cuts them instead.
    """
    table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
    for heading in headings:
        right = heading.endswith(">")
        table.add_column(name(heading.rstrip(">")), justify="right" if right else "left", no_wrap=right)
    return table


def _share(nbytes: float, reading: DeviceReading) -> str:
    return f"{100 * nbytes / (reading.peak_bytes or 1):.1f} %"


def _categories(shared: _Shared) -> Table:
    table = _table("Category", "Bytes>", "Share>", "", "Storages>")
    reading, groups = shared.reading, shared.categories
    room = shared.line - FIGURES_WIDTH - _longest(groups.index) - len("Storages") - 2 * GAP
    for category, row in groups.iterrows():
        style = category_style(str(category))
        filled = bar(row["nbytes"] / (reading.peak_bytes or 1), max(min(room, BAR_WIDTH), 1), style)
        cells = (format_bytes(row["nbytes"]), _share(row["nbytes"], reading), filled, f"{row['count']:,}")
        table.add_row(name(str(category), style), *cells)
    return table


def _meanings(shared: _Shared) -> list[Text]:
    """Explain the larger categories. The headline has explained the largest, unless it is about growth."""
    groups = shared.categories["nbytes"]
    if shared.headline and growing(shared.reading) is None:
        groups = groups.iloc[1:]
    large = groups.index[groups >= shared.reading.peak_bytes * _EXPLAINED_RATIO]
    explained = [row for category in large if (row := CATEGORY_OF.get(str(category))) and row.meaning]
    if not explained:
        return []
    return [Text("; ".join(f"{row.name}: {row.meaning}" for row in explained), style="dim")]


def _storages(reading: DeviceReading, rows: int, line: int) -> Table:
    table = _table("Bytes>", "Share>", "Category", "Name", "Tensor")
    largest = reading.at_peak.head(rows)
    room = line - FIGURES_WIDTH - _longest(largest["category"]) - 2 * GAP
    for_tensor = min(_longest(largest["tensor"]), max(room - _longest(largest["name"]), room * 2 // 5))
    for _, row in largest.iterrows():
        category = name(row["category"], category_style(row["category"]))
        cells = (category, middle(row["name"], room - for_tensor), head(row["tensor"], for_tensor))
        table.add_row(format_bytes(row["nbytes"]), _share(row["nbytes"], reading), *cells)
    _add_rest(table, reading.at_peak["nbytes"].iloc[rows:], reading)
    return table


def _longest(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)


def _add_rest(table: Table, rest: pd.Series[int], reading: DeviceReading) -> None:
    if len(rest):
        more = name(f"{len(rest):,} more", "dim")
        table.add_row(format_bytes(rest.sum()), _share(rest.sum(), reading), more)


def _modules(shared: _Shared, rows: int) -> Table:
    reading, room = shared.reading, shared.line - FIGURES_WIDTH - 33
    table = _table("Bytes>", "Share>", "Own>", "Only for backward>", "Module", "Class")
    for module, row in shared.modules.head(rows).iterrows():
        sizes = map(format_bytes, (row["own_bytes"], shared.only_for_backward[str(module)]))
        names = (tail(str(module) or "(root)", room * 3 // 5), head(row["class_name"], room * 2 // 5))
        table.add_row(
            format_bytes(row["inclusive_bytes"]), _share(row["inclusive_bytes"], reading), *sizes, *names
        )
    return table


def _lines(shared: _Shared, rows: int) -> Table:
    table = _table("Bytes>", "Share>", "Line", "Storages>")
    reading, groups = shared.reading, shared.lines
    for line, row in groups.head(rows).iterrows():
        where = tail(str(line), shared.line - FIGURES_WIDTH - 12)
        table.add_row(format_bytes(row["nbytes"]), _share(row["nbytes"], reading), where, f"{row['count']:,}")
    _add_rest(table, groups["nbytes"].iloc[rows:], reading)
    return table


def _holders(shared: _Shared, rows: int) -> Table:
    """Return the bytes of each kind of holder, its largest holder, and that one's bytes if the kind has several."""
    table = _table("Bytes>", "Share>", "Kind", "Largest of these")
    reading, groups = shared.reading, shared.holders
    room = shared.line - FIGURES_WIDTH - _longest(groups.index[:rows]) - GAP
    for kind, row in groups.head(rows).iterrows():
        largest = shared.largest_holders[str(kind)]
        first_holder = str(largest.index[0]) if len(largest) else ""  # no holder of this kind is known
        holder, remark = short_inferred(first_holder)
        if len(largest) > 1:
            holder = f"{format_bytes(largest.iloc[0])}: {holder}"
        cells = (name(str(kind)), head(holder, room - len(remark)) + remark)
        table.add_row(format_bytes(row["nbytes"]), _share(row["nbytes"], reading), *cells)
    _add_rest(table, groups["nbytes"].iloc[rows:], reading)
    return table


def _commands(lines: str) -> Text:
    """Return lines with commands that the user copies, whole: a wrapped command may not run."""
    made = Code(lines, indent=0)
    made.stylize("dim")
    return made


def _phases(reading: DeviceReading) -> Text:
    sums = reading.at_peak.groupby("phase")["nbytes"].sum()
    idle = [
        words.IDLE[phase].format(nbytes=format_bytes(sums[phase]))
        for phase in words.IDLE
        if sums.get(phase, 0)
    ]
    if any(kind == "threads" for kind, _ in reading.notes):
        idle.append(words.OTHER_THREADS)
    return Text("; ".join([words.IN_USE.format(share=_share(sums.get("use", 0), reading)), *idle]))


def _saved(reading: DeviceReading) -> list[Text]:
    saved = saved_for_backward(reading)
    if not saved.nbytes:
        return []
    only = saved.nbytes - saved.held_anyway_bytes
    if f"{100 * saved.share_ratio:.1f}" == "0.0":
        return []
    text = Text(words.ONLY_FOR_BACKWARD)
    text.append(f"{100 * saved.share_ratio:.1f} % of the peak ({format_bytes(only)})", style="bold")
    if saved.held_anyway_bytes:
        text.append(words.SAVED_ANYWAY.format(nbytes=format_bytes(saved.held_anyway_bytes)))
    layers = repeated_layers(reading)
    return [text] if layers is None else [text, Text(clip(str(layers)))]


def _recomputed(reading: DeviceReading) -> list[Text]:
    again = recomputed(reading)
    if again is None:
        return []
    share, instead = _share(again.at_peak_bytes, reading), format_bytes(again.instead_bytes)
    text = Text(words.RECOMPUTED)
    text.append(f"{share} of the peak ({format_bytes(again.at_peak_bytes)})", style="bold")
    return [text.append(words.INSTEAD.format(nbytes=instead))]


def _code_of(reading: DeviceReading) -> CodeReader:
    """Return the reader of the program's lines, if its files are as they were when the run started."""
    return CodeReader(float(reading.meta.get("started_s", 0.0)))


def _edit_text(finding: Finding, code: CodeReader | None) -> str:
    """Return the line that a finding asks to change, after the edit if the edit is known; empty without a line."""
    edit = None if code is None else edit_of(finding, code)
    if edit is None:
        return ""
    lines, site = edit["lines"], edit["site"]
    signs = [line["sign"] for line in lines]
    if ADDED not in signs:
        return LINE_TO_CHANGE.format(site=short_place(site), code=lines[0]["text"].strip())
    added = signs.index(ADDED)
    new = lines[added]["text"].strip()
    if REMOVED in signs:
        return EDIT.format(site=short_place(site), code=new)
    file, _, first = site.rpartition(":")
    return ADDED_LINE.format(site=short_place(f"{file}:{int(first) + added - 1}"), code=new)


def _counted_as(finding: Finding, reading: DeviceReading) -> str:
    """Return the categories of a finding's bytes at the peak, if there are several."""
    sums = finding_categories(finding, reading)
    return (
        COUNTED_AS.format(parts=listed([f"{name} ({format_bytes(sums[name])})" for name in sums]))
        if sums
        else ""
    )


def finding_parts(
    findings: Sequence[Finding], rows: int, reading: DeviceReading, code: CodeReader | None = None
) -> list[RenderableType]:
    """Return a headline for each finding, and what to do under it.

    Args:
        findings: largest first.
        rows: most findings that are shown.
        reading: the profile that has these findings.
        code: reads the program's lines, to show the one to change; None to show none.
    """
    parts: list[RenderableType] = []
    for finding in findings[:rows]:
        held = holder_at(finding.holder, short_place(finding.site), finding.remark, finding.variable)
        headline = Table.grid(padding=(0, GAP, 0, 0))
        kind_and_holder = Text(clip(f"{finding.kind}: {held}"), style="bold", overflow="fold")
        headline.add_row(Text(format_bytes(finding.nbytes), no_wrap=True), kind_and_holder)
        parts.append(headline)
        texts = filter(None, (finding.advice, _counted_as(finding, reading), _edit_text(finding, code)))
        parts += [Padding(Text(clip(text), overflow="fold"), (0, 0, 0, INDENT)) for text in texts]
    if len(findings) > rows:
        more = words.MORE_FINDINGS.format(count=len(findings) - rows)
        parts.append(Text(more, style="dim"))
    return parts


def _small(reading: DeviceReading) -> list[RenderableType]:
    """Return a line about memory that grows a little, and one with the number of other small findings."""
    grown = small_growth_text(reading)
    count = len(reading.small_findings) - (grown != "")
    parts: list[RenderableType] = ["", Text(grown, overflow="fold")] if grown else []
    if count:
        line = words.SMALL_FINDINGS.format(bound=small_bound(reading), count=count)
        parts += [*([] if reading.findings else [""]), Text(line, style="dim")]
    return parts


def _change_text(way: Any) -> str:
    """Return a change with its time, its basis and the decision that it needs."""
    decision = ways.DECISION.format(decision=way.decision) if way.decision else ""
    return "; ".join(filter(None, (way.way, ways.time_text(float(way.time_ratio)), way.basis, decision)))


def _lowered(reading: DeviceReading, peak_bytes: int) -> str:
    share = f"{(1 - peak_bytes / reading.peak_bytes) * 100:.0f} %"
    return ways.FALL.format(peak=format_bytes(peak_bytes), share=share)


def _ways(shared: _Shared, most: int, *, with_code: bool) -> list[RenderableType]:
    """Return a row for each change that would lower the peak, and the code of one of them."""
    reading, found = shared.reading, shared.ways
    shown, chosen = shown_ways(found, most)
    grid = Table.grid(padding=(0, GAP, 0, 0))
    for way in found.loc[shown].itertuples():
        grid.add_row(
            Text(_lowered(reading, int(way.peak_bytes)), no_wrap=True),
            Text(_change_text(way), overflow="fold"),
        )
    is_beside_findings = bool(reading.findings)
    heading = ways.ways_heading(is_beside_findings=is_beside_findings, is_cut_off=reading.cut_off is not None)
    peaks_bytes = found.loc[shown, "peak_bytes"].tolist()
    heading = ways.heading_in_terminal(heading, peaks_bytes, is_beside_findings=is_beside_findings)
    meanings = ways.bases_text(found.loc[shown, "basis"])
    if peaks_bytes != sorted(peaks_bytes):
        meanings = f"{meanings} {ways.ORDER}"
    parts: list[RenderableType] = [heading, grid, Text(meanings, style="dim")]
    code = str(found["lines"][chosen]).rstrip()
    peak_of_code = format_bytes(int(found["peak_bytes"][chosen]))
    parts.append(Text(ways.code_heading(chosen, peak_of_code)))
    if with_code:
        parts.append(Code(code, INDENT))
    else:
        parts.append(Text(ways.LINES_ELSEWHERE.format(count=code.count("\n") + 1)))
    others = len(found) - len(shown)
    if others:
        parts.append(
            Text(ways.ONE_MORE_WAY if others == 1 else ways.MORE_WAYS.format(count=others), style="dim")
        )
    elif len(found) > 1:
        parts.append(Text(ways.MORE_LINES, style="dim"))
    return parts


def _evidence(reading: DeviceReading) -> Text:
    count, time_ns = int(reading.meta.get("holder_samples", 0)), int(reading.meta.get("holder_samples_ns", 0))
    cut = int(reading.meta.get("holder_samples_cut", 0))
    known = words.KNOWN_BY.format(evidence=evidence_text(evidence_bytes(reading)))
    if not cut:
        return Text(known, style="dim")
    took = words.SEARCHED.format(count=count, time=format_duration(time_ns))
    limit = words.CUT_SHORT.format(searches=counted(cut, "search"))
    return Text(f"{known}\n{took}{limit}", style="dim")


def _notes(found: list[tuple[str, str]], rows: int) -> list[Text]:
    notes = [Text(clip(f"- {kind}: {text}"), overflow="fold") for kind, text in found[:rows]]
    if len(found) > rows:
        notes.append(Text(words.MORE_NOTES.format(count=len(found) - rows), style="dim"))
    return notes
