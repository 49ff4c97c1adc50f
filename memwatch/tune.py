"""`memwatch.tune`: what torch's CUDA allocator would reserve for a recorded program under other settings.

The recorded allocations and frees become a trace. The trace runs through torch's own allocator where torch is a CUDA
build, and through memwatch's model otherwise (`memwatch.devices.cuda_allocator`).
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd
from rich.table import Table
from rich.text import Text

from memwatch.capture.schema import NONE
from memwatch.device_names import is_host
from memwatch.devices.cuda_allocator import ANY_DEVICE_BYTES, Outcome, SettingsError, Trace, choose_allocator
from memwatch.errors import MemwatchError, OptionError
from memwatch.memory_snapshot import read_snapshot
from memwatch.reading import Reading, load, recorded_on_device
from memwatch.report.console import clip, name, to_text
from memwatch.sizes import format_bytes, parse_bytes
from memwatch.words.places import short_place

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from memwatch.capture.columns import IntArray
    from memwatch.devices.cuda_allocator import Allocator
    from memwatch.report.records.schema import TuneRecord

_EXPANDABLE: Final = "expandable_segments:True"
_DIVISIONS: Final = tuple(f"roundup_power2_divisions:{number}" for number in (2, 4, 8, 16, 32, 64))
_SPLITS: Final = tuple(f"max_split_size_mb:{size}" for size in (32, 64, 128, 256, 512, 1024))
# torch wants more than 10
_SEGMENTS: Final = tuple(f"large_segment_size_mb:{size}" for size in (11, 12, 16, 32, 64, 128))
SETTINGS: Final = (
    "",
    _EXPANDABLE,
    *_DIVISIONS,
    *_SPLITS,
    *_SEGMENTS,
    *(f"{_EXPANDABLE},{each}" for each in (*_DIVISIONS, *_SEGMENTS)),
    *(f"{first},{second}" for first, second in itertools.product(_SPLITS[1:4], _DIVISIONS[1:4])),
)
"""The settings that are tried. `garbage_collection_threshold` is not among them: torch ignores it unless the program
limits its share of the device."""
_VALUES: Final = {
    values[0].partition(":")[0]: values for values in ((_EXPANDABLE,), _SPLITS, _DIVISIONS, _SEGMENTS)
}
"""The values of each option, in the order in which a setting names its options."""
_PICKLE: Final = b"\x80"
_MOST_LINES: Final = 12
"""Lines of the program that are examined. A guess."""
_MOST_TENSORS: Final = 20
"""A line that made more tensors than these at the peak is not examined. A guess."""
_LEAST_GAIN_RATIO: Final = 0.02
"""Guess: a smaller gain is not worth changing a program for."""
_POOL: Final = "pool_id"
_SEGMENT_POOL: Final = "segment_pool_id"
_FREES: Final = ("free_requested", "free_completed")
VARIABLE: Final = "PYTORCH_ALLOC_CONF"
"""torch 2.11 to 2.15 read it; `PYTORCH_CUDA_ALLOC_CONF`, its older name, comes first where both are set."""
_DEFAULT: Final = "the default"


def tune(
    source: Reading | str | os.PathLike[str],
    *,
    device_memory: int | str | None = None,
    settings: Sequence[str] | None = None,
    device: str | None = None,
) -> Tuning:
    """Return what torch's CUDA caching allocator reserves for a program under each of many settings.

    Args:
        source: what `profile()` or `load()` gave, or the path of a capture or of torch's memory snapshot. The program
            may have run on a CPU, on a GPU or on fake tensors.
        device_memory: the memory of the device that torch can use, as `"80 GiB"`. By default the device never fills up.
        settings: the settings to try beside the default, as `["max_split_size_mb:128"]`; by default 41, and
            then those that differ from the best in one option.
        device: the device whose tensors count, as `cuda:1`; by default the main one.

    Raises:
        MemwatchError: the source cannot be read, or no tensor was recorded.
    """
    reading = _reading_of(source)
    if device is not None:
        reading = reading.on(device)
    device_bytes = None if device_memory is None else parse_bytes(device_memory)
    if device_bytes == 0:
        raise OptionError("a device without memory fits nothing; give a size such as 80GiB")
    lives = _lives_of(reading)
    if not len(lives.sizes):
        raise MemwatchError(f"no allocation was recorded on {reading.device}, so there is nothing to tune")
    allocator, because = choose_allocator()
    capacity_bytes = ANY_DEVICE_BYTES if device_bytes is None else device_bytes
    trace = lives.trace
    rejected: dict[str, str] = {}
    outcomes: list[Outcome] = []
    fresh = list(dict.fromkeys(["", *(SETTINGS if settings is None else settings)]))
    while fresh:
        for setting, outcome in zip(fresh, allocator.run_many(trace, fresh, capacity_bytes), strict=True):
            if isinstance(outcome, SettingsError):
                rejected[setting] = str(outcome)
            else:
                outcomes.append(outcome)
        if settings is not None:
            break
        # Each round changes one option of the best settings so far, until none gets better. Segments that grow are
        # searched apart, because the best of both kinds have different other options.
        tried = {*rejected, *(each.settings for each in outcomes)}
        kinds = [
            [each for each in outcomes if (_EXPANDABLE in each.settings) is grows] for grows in (False, True)
        ]
        bests = [min(kind, key=_rank) for kind in kinds if kind]
        changed = (each for best in bests for each in _with_one_change(best.settings))
        fresh = list(dict.fromkeys(each for each in changed if each not in tried))
    if settings is not None and rejected:
        raise OptionError(next(iter(rejected.values())))
    default = outcomes[0]
    return Tuning(
        reading=reading,
        allocator=allocator.name,
        model_because=because,
        device_bytes=device_bytes,
        lower_bound_bytes=int(trace.live_bytes.max(initial=0)),
        default=default,
        outcomes=tuple(sorted(outcomes, key=_rank)),
        rejected=rejected,
        earlier=tuple(_earlier_lines(reading, lives, allocator)),
    )


def _with_one_change(settings: str) -> Iterator[str]:
    """Yield the settings that have another value for one option, or leave it out."""
    chosen = {part.partition(":")[0]: part for part in settings.split(",")}
    for option, values in _VALUES.items():
        for value in ("", *values):
            named = chosen | {option: value}
            yield ",".join(named[each] for each in _VALUES if named.get(each))


def _rank(outcome: Outcome) -> tuple[int, ...]:
    """Order settings: first by whether they fit, then by retries, reserved bytes, and length of the text.

    Among settings that do not fit, the one that gets furthest comes first.
    """
    simplicity = outcome.settings.count(":"), len(outcome.settings)
    if outcome.refused_event is not None:
        return 1, -outcome.refused_event, *simplicity
    return 0, outcome.retries, outcome.most_reserved_bytes, *simplicity


def _reading_of(source: Reading | str | os.PathLike[str]) -> Reading:
    if isinstance(source, Reading):
        return source
    path = Path(source)
    if path.is_file():
        with path.open("rb") as file:
            if file.read(1) == _PICKLE:
                return Reading(read_snapshot(path))
    return load(path)


@dataclass(frozen=True)
class _Lives:
    """The allocations of one device.

    Attributes:
        storages: their rows in the table `storages`.
        sizes: the requested bytes of each.
        births, deaths: their begin and end, on any scale that keeps the order; a negative death means "never freed".
        streams: the stream of each.
    """

    storages: IntArray
    sizes: IntArray
    births: IntArray
    deaths: IntArray
    streams: IntArray

    @property
    def trace(self) -> Trace:
        return Trace.of_lives(self.sizes, self.births, self.deaths, self.streams)

    def with_first(self, rows: IntArray) -> Trace:
        """Return the trace in which some allocations come before all others."""
        births = self.births.copy()
        births[rows] = births.min() - 1
        return Trace.of_lives(self.sizes, births, self.deaths, self.streams)


def _lives_of(reading: Reading) -> _Lives:
    """Return the lives of the storages on the device of a reading."""
    table = reading.part("storages", ["counted", "device", "nbytes", "birth_event", "death_event"])
    here = (table["counted"] & (table["device"] == reading.device)).to_numpy()
    rows = np.flatnonzero(here)
    table = table[here]
    sizes, births, deaths = (
        table[name].to_numpy().astype(np.int64) for name in ("nbytes", "birth_event", "death_event")
    )
    streams = np.zeros(len(rows), dtype=np.int64)
    if reading.capture.rows("history") or reading.capture.rows("blocks"):
        births, deaths, streams = _of_history(reading, rows)
    return _Lives(rows, sizes, births, deaths, streams)


def _of_history(reading: Reading, rows: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return births, deaths and streams by the entries of a memory snapshot.

    A block is free for others when its free is completed: until then another stream may use it. A private pool counts
    as a stream of its own, because its blocks serve no other pool.
    """
    capture = recorded_on_device(reading)
    history, segments, blocks = (capture.tables[name] for name in ("history", "segments", "blocks"))
    actions = np.array(capture.text(history["action"]), dtype=object)
    births = np.full(len(rows), -1, dtype=np.int64)
    deaths = np.full(len(rows), -1, dtype=np.int64)
    names: dict[int, tuple[int, str]] = {}
    place_of = {storage: place for place, storage in enumerate(rows.tolist())}
    stream_of = history["stream"].tolist()
    pools = [_pool(text, _POOL) for text in capture.text(history["extra"])]
    for entry, (action, storage) in enumerate(
        zip(actions.tolist(), history["storage"].tolist(), strict=True)
    ):
        place = place_of.get(storage)
        if place is None:
            continue
        if action == "alloc":
            births[place] = entry
            names[place] = (stream_of[entry], pools[entry])
        elif action in _FREES:
            deaths[place] = entry
            names.setdefault(place, (stream_of[entry], pools[entry]))
    segment_pools = [_pool(text, _SEGMENT_POOL) for text in capture.text(segments["extra"])]
    segment_streams = segments["stream"].tolist()
    for segment, storage in zip(blocks["segment"].tolist(), blocks["storage"].tolist(), strict=True):
        place = place_of.get(storage)
        if place is not None:
            names.setdefault(place, (segment_streams[segment], segment_pools[segment]))
    # a storage whose free the history lacks ended before the next one at its address
    ended = dict(
        zip(
            capture.tables["deaths"]["storage"].tolist(),
            capture.tables["deaths"]["time_ns"].tolist(),
            strict=True,
        )
    )
    for place in np.flatnonzero(deaths < 0).tolist():
        if (time_ns := ended.get(int(rows[place]))) is not None:
            entry = int(np.searchsorted(history["time_ns"], time_ns, side="right"))
            deaths[place] = max(entry, births[place] + 1)
    default = (0, "")
    numbers = {default: 0, (NONE, ""): 0}
    streams = [numbers.setdefault(names.get(place, default), len(numbers)) for place in range(len(rows))]
    return births, deaths, np.array(streams, dtype=np.int64)


def _pool(extra: str, key: str) -> str:
    """Return the private pool that the fields of an entry name; empty for the pool of all others."""
    if key not in extra:
        return ""
    found = json.loads(extra).get(key)
    return "" if not found or not any(found) else str(found)


def _earlier_lines(reading: Reading, lives: _Lives, allocator: Allocator) -> list[EarlierLine]:
    """Return lines whose long-lived tensors split segments, found by making the tensors of each line first.

    The segments are those of the default settings on a device that never fills up. Only lines with few tensors are
    tried.
    """
    trace = lives.trace
    default = allocator.run(trace, "", ANY_DEVICE_BYTES)
    if (
        default.most_reserved_bytes - default.most_allocated_bytes
        < _LEAST_GAIN_RATIO * default.most_reserved_bytes
    ):
        return []
    event = int(np.argmax(default.reserved_bytes))
    order = np.full(len(lives.sizes), len(trace), dtype=np.int64)
    end = np.full(len(lives.sizes), len(trace), dtype=np.int64)
    born = trace.sizes >= 0
    order[trace.blocks[born]] = np.flatnonzero(born)
    end[trace.blocks[~born]] = np.flatnonzero(~born)
    alive = np.flatnonzero((order <= event) & (end > event) & (lives.births > lives.births.min()))
    if not len(alive):
        return []
    lines = reading.part("storages", ["own_line"], lives.storages[alive].tolist())["own_line"].to_numpy()
    by_line = pd.Series(alive).groupby(lines).agg(list)
    few = [(line, np.array(rows)) for line, rows in by_line.items() if line and len(rows) <= _MOST_TENSORS]
    # the tensors that lived longest before the reserved bytes grew to their peak are tried first
    few.sort(key=lambda pair: -int((event - order[pair[1]]).sum()))
    found = []
    for line, rows in few[:_MOST_LINES]:
        most_bytes = allocator.run(lives.with_first(rows), "", ANY_DEVICE_BYTES).most_reserved_bytes
        if most_bytes <= default.most_reserved_bytes * (1 - _LEAST_GAIN_RATIO):
            largest = int(rows[np.argmax(lives.sizes[rows])])
            found.append(
                EarlierLine(
                    str(line),
                    len(rows),
                    int(lives.sizes[rows].sum()),
                    _holder_of(reading, int(lives.storages[largest])),
                    most_bytes,
                )
            )
    return sorted(found, key=lambda each: each.most_reserved_bytes)[:3]


def _holder_of(reading: Reading, storage: int) -> str:
    """Return who held a storage just before it died, or at the end."""
    death = int(reading.part("storages", ["death_event"], [storage])["death_event"].iloc[0])
    held = reading.held_at(death - 1 if death >= 0 else len(reading.timeline) - 1)
    return str(held.at[storage, "holder"]) if storage in held.index else ""


@dataclass(frozen=True)
class EarlierLine:
    """Long-lived tensors of one line that split segments: fewer bytes are reserved if they are made first.

    Attributes:
        line: the line of the program that makes them.
        count: number of them that are alive when most bytes are reserved.
        nbytes: their bytes.
        holder: the holder of the largest; "" if unknown.
        most_reserved_bytes: the most reserved bytes with the default settings if the program makes them before all
            others.
    """

    line: str
    count: int
    nbytes: int
    holder: str
    most_reserved_bytes: int


@dataclass(frozen=True)
class Tuning:
    """The bytes that an allocator reserves for a program under each of several settings.

    Attributes:
        reading: the program.
        allocator: the allocator that ran: torch's own, or memwatch's model.
        model_because: why torch's own allocator did not run; "" if it did.
        device_bytes: the memory of the device, None if it was not given.
        lower_bound_bytes: the most bytes of tensors that are alive at once. No setting can reserve less.
        default: the default settings.
        outcomes: the result of each setting, the best first.
        rejected: why a setting was not tried, by setting.
        earlier: lines whose tensors split segments.
    """

    reading: Reading
    allocator: str
    model_because: str
    device_bytes: int | None
    lower_bound_bytes: int
    default: Outcome
    outcomes: tuple[Outcome, ...]
    rejected: Mapping[str, str]
    earlier: tuple[EarlierLine, ...]

    @property
    def best(self) -> Outcome:
        """The setting that reserves least among those that fit without retries; of equal ones, the simplest."""
        return self.outcomes[0]

    @property
    def environment(self) -> str:
        """The line that sets the best setting in a shell; empty if that is the default."""
        return f"{VARIABLE}={self.best.settings}" if self.best.settings else ""

    @property
    def table(self) -> pd.DataFrame:
        """One row per setting, the best first."""
        table: pd.DataFrame = pd.DataFrame(
            {
                "settings": [each.settings for each in self.outcomes],
                "most_reserved_bytes": [each.most_reserved_bytes for each in self.outcomes],
                "most_allocated_bytes": [each.most_allocated_bytes for each in self.outcomes],
                "retries": [each.retries for each in self.outcomes],
                "fits": [each.fits for each in self.outcomes],
            }
        )
        return table

    def __str__(self) -> str:
        return tune_text(self)


def tune_text(tuning: Tuning, *, rows: int = 10, width: int | None = None, color: bool | None = None) -> str:
    """Return a tuning as text.

    Args:
        tuning: the result.
        rows: settings to list; the default is always among them.
        width: characters in a line; by default the terminal's, or COLUMNS.
        color: whether to colour; by default only on a terminal.
    """
    best, default = tuning.best, tuning.default
    shown = list(tuning.outcomes[:rows])
    if default not in shown:
        shown.append(default)
    table = Table(box=None, pad_edge=False)
    table.add_column("Reserved", justify="right", no_wrap=True)
    table.add_column("Retries", justify="right", no_wrap=True)
    if tuning.device_bytes is not None:
        table.add_column("Fits", no_wrap=True)
    table.add_column("Setting", overflow="fold")
    for outcome in shown:
        cells: list[str | Text] = [format_bytes(outcome.most_reserved_bytes), f"{outcome.retries:,}"]
        if tuning.device_bytes is not None:
            cells.append("yes" if outcome.fits else "no")
        table.add_row(*cells, name(outcome.settings or _DEFAULT, "bold" if outcome is best else ""))
    more = len(tuning.outcomes) - len(shown)
    parts: list[RenderableType] = [_head(tuning), "", table]
    if more > 0:
        parts.append(f"{more} more settings")
    parts += [
        "",
        f"No setting can reserve less than {format_bytes(tuning.lower_bound_bytes)}: the tensors' peak.",
    ]
    parts += [Text(clip(line)) for line in _remarks(tuning)]
    if tuning.environment:
        parts += ["", Text(f"export {tuning.environment}", style="bold", no_wrap=True, overflow="ignore")]
    return to_text(*parts, width=width, color=color)


def _head(tuning: Tuning) -> str:
    best, default = tuning.best, tuning.default
    device = "" if tuning.device_bytes is None else f" of {format_bytes(tuning.device_bytes)}"
    if not best.fits:
        return f"No setting fits the device{device}: the tensors' peak is {format_bytes(tuning.lower_bound_bytes)}"
    if best is default:
        reserved = format_bytes(default.most_reserved_bytes)
        return f"No setting is better than the default, which reserves {reserved} at most"
    now = _told(default)
    return f"{best.settings} reserves {format_bytes(best.most_reserved_bytes)} at most; the default {now}"


def _told(outcome: Outcome) -> str:
    if not outcome.fits:
        return "does not fit"
    retries = (
        f" with {outcome.retries:,} {'retry' if outcome.retries == 1 else 'retries'}"
        if outcome.retries
        else ""
    )
    return f"{format_bytes(outcome.most_reserved_bytes)}{retries}"


def _remarks(tuning: Tuning) -> list[str]:
    lines = [f"These figures come from {tuning.allocator}."]
    if tuning.model_because:
        lines[0] = f"These figures come from {tuning.allocator}, because {tuning.model_because}."
    if is_host(tuning.reading.device):
        lines.append(
            "The program was recorded on the CPU, which has no such allocator: a GPU would need this for the same "
            "tensors, and more for the workspace of its kernels."
        )
    held = tuning.reading.reserved
    if held is not None:
        lines.append(
            f"The recorded run itself reserved {format_bytes(held.most_bytes)} at most, with its own settings."
        )
    lines += [_earlier(each) for each in tuning.earlier]
    if tuning.rejected:
        count = len(tuning.rejected)
        settings = "setting was" if count == 1 else "settings were"
        lines.append(f"{count} {settings} not tried: {next(iter(tuning.rejected.values()))}")
    return lines


def _earlier(each: EarlierLine) -> str:
    tensors = "tensor" if each.count == 1 else f"{each.count} tensors"
    holder = f", held by {each.holder}" if each.holder else ""
    return (
        f"Segments are split by the {tensors} of {short_place(each.line)} ({format_bytes(each.nbytes)}{holder}). "
        f"If you make {'it' if each.count == 1 else 'them'} before all others, the default reserves "
        f"{format_bytes(each.most_reserved_bytes)} at most."
    )


def tune_record(tuning: Tuning) -> TuneRecord:
    """Return the settings, the best first, and the bound."""
    return {
        "device": tuning.reading.device,
        "allocator": tuning.allocator,
        "is_model": bool(tuning.model_because),
        "device_bytes": tuning.device_bytes,
        "lower_bound_bytes": tuning.lower_bound_bytes,
        "environment": tuning.environment,
        "settings": [
            {
                "settings": each.settings,
                "most_reserved_bytes": each.most_reserved_bytes,
                "most_allocated_bytes": each.most_allocated_bytes,
                "retries": each.retries,
                "fits": each.fits,
            }
            for each in tuning.outcomes
        ],
        "rejected": dict(tuning.rejected),
        "earlier": [
            {
                "line": each.line,
                "count": each.count,
                "nbytes": each.nbytes,
                "holder": each.holder,
                "most_reserved_bytes": each.most_reserved_bytes,
            }
            for each in tuning.earlier
        ],
    }
