"""The page as plain data. This module decides the contents of the page; template and script only lay them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.kinds.findings import FindingKind
from memwatch.kinds.roles import CATEGORIES, CATEGORY_OF
from memwatch.report.facts import (
    PeakInstant,
    bytes_by,
    cut_off_text,
    describe_meta,
    evidence_bytes,
    evidence_text,
    growing,
    headline,
    is_recorded,
    listed_ways,
    module_parents,
    no_tensor_text,
    only_for_backward,
    peak_instant,
    process_text,
    repeated_layers,
    saved_for_backward,
    shown_ways,
    small_bound,
    small_growth_text,
    with_rows_below,
)
from memwatch.report.page.columns import Words, pack_frame, pack_ints
from memwatch.report.page.edits import ADDED, Edit, calls_of_backward, edit_of
from memwatch.report.page.events import BINS, clearer_axis, live_by_category, pack_detail, peak_keeping_events
from memwatch.report.page.parts import (
    CodeReader,
    own_lines,
    pack_phases,
    pack_sources,
    pack_stacks,
    pack_uses,
)
from memwatch.report.page.privacy import PUBLIC_META, PathHider, file_of
from memwatch.report.page.sections import leak_files, leak_model, plan_model
from memwatch.sizes import format_duration
from memwatch.text import visible
from memwatch.words.findings import CHANGE_SENTENCE
from memwatch.words.page import SMALL_PARTS, small_findings_title, unread_text
from memwatch.words.places import cell_name, short_place, short_places
from memwatch.words.processes import AN_ERROR, ENDED_BY, PARTS, PROGRAM_FAILED, reserved_at_peak_text
from memwatch.words.ways import (
    BESIDE_GROWTH,
    SHARE_LESS,
    bases_text,
    reading_of_ways,
    time_text,
    ways_heading,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from memwatch.analysis.findings.finding import Finding
    from memwatch.analysis.reading import DeviceReading
    from memwatch.leaks import Leak
    from memwatch.planner.plan import Plan
    from memwatch.report.plan import Replayed

MODEL_VERSION: Final = 1
"""The version of the format of the page model."""
PEAK_EXTRA: Final = (
    *("device", "op", "first_use_op", "last_use_op", "death_event", "stack"),
    *("lag_ns", "use_ns", "drag_ns", "void_ns"),
)
"""Columns that the table of the peak shows beside those of `at_peak`."""

STEPS_SHOWN: Final = 2_000
"""Most iterations that the page lists, those with the highest peaks. A guess."""
MODULES_SHOWN: Final = 12
"""Most modules that a finding names. A guess."""

SAVED_ROWS: Final = 20_000
"""Of a longer table of saved tensors, the page shows only those alive at the peak. A guess."""


@dataclass(frozen=True)
class Extras:
    """The contents of a page beside the reading; `html` describes each field."""

    plan: Plan | None = None
    tradeoff: Sequence[Plan] | None = None
    result: Replayed | None = None
    leaks: Sequence[Leak] = ()
    title: str = ""


def page_model(
    reading: DeviceReading, extras: Extras | None = None, *, source: bool = True
) -> dict[str, Any]:
    """Return what the page of a reading shows.

    Args:
        reading: the profile.
        extras: a plan, leaks, and a title to show as well.
        source: whether paths, source lines and the command line may be in the page.

    Returns:
        A dict of plain JSON values, with one key for each part of the page. `cells` has the names that a notebook gives
        its files. `blocks` has the packed tables, see `columns`.
    """
    extras = extras or Extras()
    hide = _hider(reading, extras, source=source)
    words = Words(hide)
    at = peak_instant(reading)
    saved, layers = saved_for_backward(reading), repeated_layers(reading)
    meta = (
        reading.meta if source else {key: value for key, value in reading.meta.items() if key in PUBLIC_META}
    )
    code = code_reader(reading, source=source)
    cells = {file: name for file in sorted(files_of(reading)) if (name := cell_name(file))} if source else {}
    blocks = _blocks(reading, words, code)
    plan = _plan(reading, extras, words, hide)
    ways = _ways(reading, hide, code)
    made_of = made_of_model(reading)
    return {
        "model": MODEL_VERSION,
        "title": hide(extras.title),
        "facts": [[visible(label), hide(text)] for label, text in describe_meta(_without_ordinary(meta))],
        "totals": _totals(reading),
        "devices": _devices(reading),
        "headline": " ".join(
            filter(
                None,
                [
                    cut_off_text(reading, names_error=source),
                    visible(headline(reading)) if source else "",
                    no_tensor_text(reading),
                ],
            )
        ),  # `headline` names a line of the program, so it is left out without sources
        "peak": {
            **_peak(at, hide, source=source, has_times=is_recorded(reading, "times")),
            "step": _step_of_peak(reading, at.event),
        },
        "categories": _categories(reading),
        "made_of": made_of,
        "holders": evidence_text(evidence_bytes(reading)),
        "overview": _overview(reading),
        "process": _process(reading),
        "steps": _steps(reading),
        "saved": {
            "nbytes": saved.nbytes,
            "held_anyway_bytes": saved.held_anyway_bytes,
            "share_ratio": saved.share_ratio if is_recorded(reading, "saved tensors") else None,
            "is_new": is_recorded(reading, "saved tensors")
            and saved.share_ratio > 0
            and not _is_a_part(saved.share_ratio, made_of),
            "tensors": len(reading.saved),
            "listed": blocks["saved"]["rows"],
            "layers": "" if layers is None else visible(str(layers)),
        },
        "notes": [
            [visible(kind), hide(_note(kind, text, names_error=source))] for kind, text in reading.notes
        ],
        **findings_model(reading, hide, code=code),
        "ways": ways,
        "first_ways": _FIRST_WAYS,
        "bases": bases_text(way["basis"] for way in ways),
        "ways_reading": reading_of_ways(len(ways), is_beside_findings=bool(reading.findings)),
        "ways_heading": ways_heading(is_beside_findings=False, is_cut_off=reading.cut_off is not None),
        "unread": "" if code is None else unread_text([visible(short_place(file)) for file in code.unread]),
        "beside_growth": BESIDE_GROWTH if growing(reading) is not None else "",
        "plan": plan,
        "leaks": leak_model(extras.leaks, hide, source=source) if extras.leaks else None,
        "cells": {visible(file): visible(name) for file, name in cells.items()},
        "blocks": {**blocks, "words": words.pack()},
    }


def _note(kind: str, text: str, *, names_error: bool) -> str:
    """Return the text of a note.

    Without `names_error`, the class of the program's error is left out: its name may reveal what the program does.
    """
    return text if names_error or kind != PROGRAM_FAILED else ENDED_BY.format(error=AN_ERROR)


_ORDINARY: Final = {
    "threads": 1,
    "threads_before": 0,
    "threads_at_work_before": 0,
    "threads_unheard": 0,
    "estimate": False,
    "intercept": "key",
    "recorder": "native",
    "stacks": True,
    "holders": True,
    "holder_samples_cut": 0,
    "allocator": True,
}
"""Values that nearly every run has in its metadata. "About this run" shows an entry only if its value differs."""


def _without_ordinary(meta: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in meta.items() if key not in _ORDINARY or value != _ORDINARY[key]}


def _is_a_part(share_ratio: float, made_of: dict[str, Any]) -> bool:
    """Return whether a part of the bar has this share, compared in the digits that the page prints."""
    shares = {f"{100 * part['share_ratio']:.1f}" for part in made_of["parts"]}
    return f"{100 * share_ratio:.1f}" in shares


def _plan(
    reading: DeviceReading, extras: Extras, words: Words, hide: Callable[[str], str]
) -> dict[str, Any] | None:
    if extras.plan is None:
        return None
    return plan_model(
        reading, extras.plan, tradeoff=extras.tradeoff, replayed=extras.result, words=words, hide=hide
    )


def _hider(reading: DeviceReading, extras: Extras, *, source: bool) -> Callable[[str], str]:
    if source:
        return visible
    hide_paths = PathHider(files_of(reading) | leak_files(extras.leaks))
    return lambda text: visible(hide_paths(text))


def _totals(reading: DeviceReading) -> dict[str, Any]:
    times_ns = reading.part("timeline", ["time_ns"])["time_ns"]
    return {
        "peak_bytes": reading.peak_bytes,
        "baseline_bytes": reading.baseline_bytes,
        "increase_bytes": reading.peak_increase_bytes,
        "reserved": None if reading.reserved is None else reserved_at_peak_text(reading.reserved),
        "device": visible(reading.device),
        "ops": len(reading.part("ops", ())) if is_recorded(reading, "ops") else None,
        "events": max(len(times_ns) - 1, 0),
        "storages": len(reading.part("storages", ())),
        "at_peak": len(reading.at_peak),
        "span_ns": int(times_ns.max()) if len(times_ns) else 0,
    }


def _devices(reading: DeviceReading) -> list[dict[str, Any]]:
    return [
        {"name": visible(device), "peak_bytes": reading.on(device).peak_bytes} for device in reading.devices
    ]


def _peak(at: PeakInstant, hide: Callable[[str], str], *, source: bool, has_times: bool) -> dict[str, Any]:
    when = f", {format_duration(at.time_ns)} after the start" if has_times and at.is_any else ""
    whole = hide(str(at))
    # `hide` finds whole paths only, so it would miss a shortened one
    short = hide(at.short()) if source else whole
    return {
        "event": at.event,
        "time_ns": at.time_ns,
        "op": at.op,
        "text": whole,
        "short": short,
        "when": when,
    }


def _categories(reading: DeviceReading) -> list[dict[str, Any]]:
    sums = bytes_by(reading.at_peak, "category")["nbytes"]
    return [{"name": name, "nbytes": int(sums.get(name, 0))} for name in CATEGORIES]


_SMALL_RATIO: Final = 0.05
"""Parts of the peak below this share stand together in its bar, where they are hard to tell apart. A guess."""
_WIDE_RATIO: Final = 0.15
"""Parts from this share on have their label inside. The longest label needs 145 pixels, and a bar with labels inside
has at least 1,000."""


def made_of_model(reading: DeviceReading) -> dict[str, Any]:
    """Return the bar of what the peak is made of: its `parts` from left to right, the `small` ones, and `meanings`.

    A part has the name of its category, or of all small parts together, its bytes and its share, and in `start` and
    `width` its place on the bar in hundredths. A part that `is_wide` has room for its label.
    """
    known = [part for part in _categories(reading) if part["nbytes"]]
    total = sum(part["nbytes"] for part in known)
    small = [part for part in known if part["nbytes"] < _SMALL_RATIO * total]
    small.sort(key=lambda part: -int(part["nbytes"]))
    small = small if len(small) > 1 else []  # the name of a single small part is as short as "2 small parts"
    parts = [{**part, "category": part["name"]} for part in known if part not in small]
    if small:
        label = SMALL_PARTS.format(count=len(small))
        parts.append({"name": label, "category": "small", "nbytes": sum(part["nbytes"] for part in small)})
    start = 0.0
    for part in (*parts, *small):
        part["share_ratio"] = part["nbytes"] / total
    for part in parts:
        part["is_wide"] = part["share_ratio"] >= _WIDE_RATIO
        part["start"], part["width"] = round(start, 3), round(100 * part["share_ratio"], 3)
        start += 100 * part["share_ratio"]
    rows = [CATEGORY_OF[part["category"]] for part in parts if part["category"] in CATEGORY_OF]
    meanings = [[row.name, row.meaning] for row in rows if row.meaning is not None]
    return {"parts": parts, "small": small, "meanings": meanings, "total_bytes": total}


def _overview(reading: DeviceReading) -> dict[str, Any]:
    timeline = reading.part("timeline", ["time_ns", "live_bytes"])
    time_ns, live = timeline["time_ns"].to_numpy(), timeline["live_bytes"].to_numpy()
    axis = clearer_axis(time_ns, live)
    places = time_ns if axis == "time" else np.arange(len(live))
    events = peak_keeping_events(places, live, BINS)
    return {
        "axis": axis,
        "complete": len(events) == len(timeline),
        "event": events.tolist(),
        "x": places[events].tolist(),
        "live_bytes": {name: curve.tolist() for name, curve in live_by_category(reading, events).items()},
    }


_LAYERS: Final = {
    "tensors": ("tensor_bytes",),
    "other memory in use": ("entry_bytes", "file_bytes", "python_bytes"),
    "free memory": ("python_free_bytes", "malloc_free_bytes"),
    "without a known cause": ("other_bytes",),
}
"""The layers of the chart of the process's memory, each with the columns of the table `process` that it sums."""
_BAND_BINS: Final = 500
"""The band is a small chart, and the page has seven figures for each reading in plain: 30 KB for this many. A guess."""


def _process(reading: DeviceReading) -> dict[str, Any] | None:
    """Return the chart of the process's memory; None with fewer than two readings."""
    process = reading.process
    if len(process) < 2:
        return None
    time_ns, rss = process["time_ns"].to_numpy(), process["rss_bytes"].to_numpy()
    rows = process.iloc[peak_keeping_events(time_ns, rss, _BAND_BINS)]
    times_ns = reading.part("timeline", ["time_ns"])["time_ns"].to_numpy()
    return {
        "text": process_text(reading, always=True),
        "time_ns": rows["time_ns"].tolist(),
        "event": np.maximum(np.searchsorted(times_ns, rows["time_ns"], side="right") - 1, 0).tolist(),
        "coverage_ratio": rows["coverage_ratio"].round(4).tolist(),
        "layers": [
            {
                "name": layer,
                "meaning": ", ".join(PARTS[column] for column in columns if PARTS[column] != layer),
                "parts": [{"name": PARTS[column], "nbytes": rows[column].tolist()} for column in columns],
            }
            for layer, columns in _LAYERS.items()
        ],
    }


def _shown_steps(reading: DeviceReading) -> pd.DataFrame:
    """Return the steps that the page shows: all, or the `STEPS_SHOWN` steps with the highest peaks."""
    steps = reading.steps
    return steps if len(steps) <= STEPS_SHOWN else steps.nlargest(STEPS_SHOWN, "peak_bytes").sort_index()


def _steps(reading: DeviceReading) -> list[dict[str, Any]]:
    starts = _step_starts(reading)
    return [
        {"name": str(step), "op": int(start_op), **starts[step]}
        for step, start_op in _shown_steps(reading)["start_op"].to_dict().items()
    ]


def _step_starts(reading: DeviceReading) -> dict[Any, dict[str, int]]:
    """Return for each step when it starts: its time, and the first event that is not before it."""
    start_ns = reading.part("ops", ["start_ns"])["start_ns"]
    times_ns = reading.part("timeline", ["time_ns"])["time_ns"].to_numpy()
    rows = reading.steps
    starts_ns = np.where(rows["recorded"], rows["start_op"].map(start_ns).fillna(0), rows["start_ns"]).astype(
        np.int64
    )
    events = np.searchsorted(times_ns, starts_ns)
    return {
        step: {"time_ns": int(time_ns), "event": int(event)}
        for step, time_ns, event in zip(rows.index, starts_ns, events, strict=True)
    }


def _step_of_peak(reading: DeviceReading, peak_event: int) -> list[dict[str, int]] | None:
    """Return the start and the end of the step that has the peak.

    None if the run has fewer than two steps, or if the peak was before the first step.
    """
    starts = sorted(_step_starts(reading).values(), key=lambda start: start["event"])
    begun = [index for index, start in enumerate(starts) if start["event"] <= peak_event]
    if len(starts) < 2 or not begun:
        return None
    times_ns = reading.part("timeline", ["time_ns"])["time_ns"]
    end = {"time_ns": int(times_ns.max()), "event": len(times_ns) - 1}
    return [*starts[begun[-1] :], end][:2]


def code_reader(reading: DeviceReading, *, source: bool) -> CodeReader | None:
    """Return the reader of the sources of a run; None if the page must not contain sources."""
    return CodeReader(float(reading.meta.get("started_s", 0.0))) if source else None


def findings_model(
    reading: DeviceReading, hide: Callable[[str], str], *, code: CodeReader | None
) -> dict[str, Any]:
    """Return what the section of the findings shows beside the peak.

    Args:
        reading: the profile.
        hide: rewrites texts for the page.
        code: reads sources; None if no line may be named.
    """
    return {
        "findings": [_finding(finding, reading, hide, code) for finding in reading.findings],
        "together_peak_bytes": _together(reading),
        **_small_findings(reading, hide, code),
    }


def _small_findings(
    reading: DeviceReading, hide: Callable[[str], str], code: CodeReader | None
) -> dict[str, Any]:
    """Return the small findings, a title that counts them, and a sentence if one of them is about growth."""
    found = reading.small_findings
    return {
        "small_findings": [_finding(finding, reading, hide, code) for finding in found],
        "small_findings_title": small_findings_title(len(found), small_bound(reading)),
        "small_growth": hide(small_growth_text(reading)),
    }


_LABELS: Final = {kind.value: kind.row.label for kind in FindingKind}


def _finding(
    finding: Finding, reading: DeviceReading, hide: Callable[[str], str], code: CodeReader | None
) -> dict[str, Any]:
    source = code is not None
    edit = None if code is None else edit_of(finding, code)
    # the site of a variable is where a search found it: the line to change says more
    place = finding.site if edit is None else edit["site"]
    storages = sorted(finding.storages)
    modules = reading.part("storages", ["module"], storages)["module"].unique().tolist()
    texts = {name: hide(str(getattr(finding, name))) for name in ("kind", "holder", "site", "advice")}
    edges = [hide(short_places(edge) if source else edge) for edge in filter(None, finding.path.splitlines())]
    if finding.change:  # the full advice also has the peak, which the page shows above it
        texts["advice"] = hide(CHANGE_SENTENCE.format(change=finding.change))
    return {
        **texts,
        "site": hide(place),
        "label": hide(_LABELS.get(str(finding.kind), str(finding.kind))),
        "edit": _edit(edit),
        "place": hide(short_place(place)) if source and place else hide(place),
        "nbytes": int(finding.nbytes),
        "path": edges,
        "predicted_peak_bytes": finding.predicted_peak_bytes,
        "storages": pack_ints(storages, delta=True),
        "modules": [hide(module) for module in modules[:MODULES_SHOWN] if module],
    }


_FIRST_WAYS: Final = 3
"""Changes that the page shows; the others are behind a line that says how many they are. A guess."""


def _edit(edit: Edit | None) -> dict[str, Any] | None:
    """Return an edit for the page, with the texts of its new lines as `code`; "" if it only shows a line."""
    if edit is None:
        return None
    lines = [{"sign": line["sign"], "text": visible(line["text"])} for line in edit["lines"]]
    code = "\n".join(line["text"] for line in edit["lines"] if line["sign"] == ADDED)
    return {"place": visible(short_place(edit["site"])), "lines": lines, "code": code}


def _ways(
    reading: DeviceReading, hide: Callable[[str], str], code: CodeReader | None
) -> list[dict[str, Any]]:
    """Return the changes that would lower the peak.

    `lines` is code and is not passed through `hide`. The page shows the code of one change without a click: the one
    whose code the summary shows, see `shown_ways`. A change that replaces `backward()` also has `edit`: the program's
    line that calls it.
    """
    listed = listed_ways(reading)
    if listed.empty:
        return []
    shown, chosen = shown_ways(listed, _FIRST_WAYS)
    is_growing = growing(reading) is not None  # then visible code would look like the fix for the growth
    rows = [*shown, *(row for row in range(len(listed)) if row not in shown)]
    backward = _edit(_backward(reading, code))
    found: list[Any] = (
        listed.loc[rows].assign(is_open=[row == chosen and not is_growing for row in rows]).to_dict("records")
    )
    return [
        {
            **{name: hide(way[name]) for name in ("kind", "way", "basis", "decision")},
            "peak_bytes": way["peak_bytes"],
            "time": time_text(way["time_ratio"]),
            "fall": SHARE_LESS.format(share=f"{(1 - way['peak_bytes'] / reading.peak_bytes) * 100:.0f} %"),
            "lines": way["lines"],
            "edit": backward if _IN_PARTS in way["kind"].split(" + ") else None,
            "is_open": way["is_open"],
        }
        for way in found
    ]


_IN_PARTS: Final = "micro_batches"
"""The change whose code goes in place of the call of `backward()`."""


def _backward(reading: DeviceReading, code: CodeReader | None) -> Edit | None:
    """Return the only line of the program that calls `backward()`, as removed; None if there are several."""
    if code is None or not is_recorded(reading, "ops"):
        return None
    ops = reading.part("ops", ["phase", "own_line"], coded=True)
    lines = ops["own_line"][ops["phase"] == "backward"].unique().tolist()
    return calls_of_backward(str(lines[0]), code) if len(lines) == 1 and lines[0] else None


def _together(reading: DeviceReading) -> int | None:
    """Return the peak if all findings were fixed; every finding holds the same figure."""
    findings = reading.findings
    return findings[0].together_peak_bytes if len(findings) > 1 else None


def _blocks(reading: DeviceReading, words: Words, code: CodeReader | None) -> dict[str, Any]:
    saved, stacks = reading.saved, reading.part("storages", ["stack"])["stack"].unique()
    if len(saved) > SAVED_ROWS:
        saved = saved[saved["at_peak"]]
    extra = reading.part("storages", PEAK_EXTRA, reading.at_peak.index)
    peak = reading.at_peak.drop(columns="share_ratio").join(extra)
    peak.insert(0, "id", peak.index)
    peak["death_op"] = _death_ops(reading, peak["death_event"])
    steps = _shown_steps(reading).copy()
    steps.insert(0, "step", steps.index)
    return {
        "peak": pack_frame(peak, words),
        "saved": pack_frame(saved, words, delta=("storage", "op", "saved_op", "used_op", "released_op")),
        "modules": pack_frame(_modules(reading), words),
        "steps": pack_frame(steps, words),
        "detail": pack_detail(reading, words),
        "phases": pack_phases(reading, words),
        "uses": pack_uses(reading, peak["id"].tolist()),
        "stacks": pack_stacks(reading, stacks, words),
        "sources": pack_sources(own_lines(reading, stacks), words, code),
    }


def _modules(reading: DeviceReading) -> pd.DataFrame:
    """Return the table of modules for the page.

    `parameter_bytes` includes the parameters of child modules, unlike in `Reading.modules`. In place of `saved_bytes`,
    all bytes that backward reads, the page shows the bytes that are alive only for backward, as its other figures do.
    """
    modules: pd.DataFrame = reading.modules.drop(columns="saved_bytes")
    modules.insert(0, "module", modules.index)
    modules["parent"] = module_parents(modules["module"].tolist(), modules["parent"].tolist())
    modules["only_for_backward_bytes"] = only_for_backward(reading)
    modules["parameter_bytes"] = with_rows_below(
        modules["parameter_bytes"].tolist(), modules["parent"].tolist()
    )
    return modules


def _death_ops(reading: DeviceReading, death_event: pd.Series[int]) -> NDArray[np.int64]:
    """Return the last op that had started when each storage died; -1 for storages that are alive at the end."""
    op = reading.part("timeline", ["op"])["op"].to_numpy()
    return np.where(death_event < 0, -1, op[death_event])


def files_of(reading: DeviceReading) -> set[str]:
    """Return the source files that texts of a reading may name."""
    frames = (
        frame
        for stack in reading.part("storages", ["stack"])["stack"].unique()
        if stack >= 0
        for frame in reading.stack(int(stack))
    )
    columns = ("line", "own_line")
    tables = [reading.part(name, columns) for name in ("ops", "storages")]
    lines = {line for rows in tables for column in columns for line in rows[column].unique()}
    lines |= set(reading.saved["line"])
    lines |= {finding.site for finding in reading.findings}
    return {file_of(line) for line in lines} | {frame[0] for frame in frames}
