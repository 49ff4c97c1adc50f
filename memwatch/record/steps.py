"""Record only some steps of a block. Decide when a step ends, which steps to record, and which recorded steps to keep.

A schedule chooses the steps to record. It is a function that takes the number of a step and returns a `ProfilerAction`,
like the functions that `torch.profiler.schedule` returns.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
from torch.profiler import ProfilerAction

from memwatch._torch.autograd import NO_TASK, current_graph_task_id
from memwatch._torch.modes import disable_torch_function
from memwatch.capture.columns import IntArray, as_rows
from memwatch.capture.schema import RECORDED_BY_NAME
from memwatch.errors import MemwatchError
from memwatch.record.clock import Clock, ticks
from memwatch.record.kept_rows import KeptRows, LiveEvents, MeasuredEvents, together

if TYPE_CHECKING:
    from weakref import WeakMethod

    from memwatch.capture.columns import Note
    from memwatch.record.context import Context
    from memwatch.record.interception import Handler, Interceptor
    from memwatch.record.saved_tensors import SavedTensorHooks
    from memwatch.record.tables.rows import OpCounter
    from memwatch.record.tables.storages import Storages

Schedule: TypeAlias = Callable[[int], ProfilerAction]
KEEPS: Final = ("all", "peaks")
"""The choices of recorded steps to keep: all steps, or only the steps that set a new peak or fail."""
_WRITE_S: Final = 0.5
"""Seconds between two writes of the live curve. A guess."""
_MOST_MARKS: Final = 2_000
"""Steps, or rows, that wait at most for a write. A guess."""
_FREE_PEAKS: Final = 100
"""Steps with a new peak that are kept, however little the peak rose. A guess."""
_RISE_RATIO: Final = 1.01
"""A growing program sets a peak in every step. After `_FREE_PEAKS` steps, only such a rise counts. A guess."""
_EVENTS: Final = "allocator"
_CURVE: Final = "step_curve"


@dataclass(frozen=True, kw_only=True)
class Cycle:
    """A schedule that records some steps of every cycle; see `memwatch.schedule`."""

    skip_first: int
    wait: int
    warmup: int
    active: int
    repeat: int

    def __call__(self, step: int) -> ProfilerAction:
        """Return the action of a step. The first step is 0."""
        length = self.wait + self.warmup + self.active
        cycle, place = divmod(step - self.skip_first, length)
        if cycle < 0 or (self.repeat and cycle >= self.repeat) or place < self.wait:
            return ProfilerAction.NONE
        return ProfilerAction.WARMUP if place < self.wait + self.warmup else ProfilerAction.RECORD


@dataclass(frozen=True)
class Sampled:
    """A schedule that records the first steps, and then every Nth step: `memwatch run --every N --first M`.

    Attributes:
        every: record the steps whose numbers are multiples of this. 0 records none of them.
        first: how many steps are recorded at the start.
    """

    every: int = 0
    first: int = 0

    def __call__(self, step: int) -> ProfilerAction:
        """Return the action of a step. The first step is 0."""
        is_due = step < self.first or (self.every and step % self.every == 0)
        return ProfilerAction.RECORD if is_due else ProfilerAction.NONE


def schedule(
    *, skip_first: int = 0, wait: int = 0, warmup: int = 0, active: int = 1, repeat: int = 0
) -> Schedule:
    """Return a schedule for `memwatch.profile(schedule=...)`, which chooses the steps to record.

    A cycle consists of steps that wait, steps that warm up and steps that are recorded. The live curve is exact in all
    of them.

    Args:
        skip_first: how many steps come before the first cycle. They are not recorded.
        wait: how many steps of each cycle are not recorded.
        warmup: how many steps of each cycle memwatch observes but does not keep. Memory that outlives them gets a name.
        active: how many steps of each cycle are recorded.
        repeat: how many cycles run. 0 repeats them to the end.

    Raises:
        MemwatchError: a count is negative, or `active` is 0.
    """
    counts = {"skip_first": skip_first, "wait": wait, "warmup": warmup, "active": active, "repeat": repeat}
    for name, count in counts.items():
        if count < (name == "active"):
            raise MemwatchError(
                f"schedule({name}={count}) is too small; `active` is at least 1 and no count is negative"
            )
    return Cycle(**counts)


class Sleeper:
    """Switch the parts of the recorder that see ops off and on again, in the block's thread.

    `sleep` and `wake` are for steps that the schedule skips. `pause` and `resume` are for short times in any step.

    Args:
        storages: the table of storages.
        interceptor: passes every op to the handler.
        saved: the hooks on saved tensors.
        context: the running module calls.
        handler: runs an op and records it.
    """

    def __init__(
        self,
        storages: Storages,
        interceptor: Interceptor,
        saved: SavedTensorHooks,
        context: Context,
        handler: Handler,
    ) -> None:
        self._storages = storages
        self._interceptor = interceptor
        self._saved = saved
        self._context = context
        self._handler = handler
        self.is_asleep = False

    def start(self) -> None:
        """Begin to see ops."""
        self._interceptor.start(self._handler)

    def sleep(self) -> None:
        """Stop seeing ops. The allocator's events are still recorded."""
        self._interceptor.stop()
        self._saved.pause()
        self._context.sleep()
        self._storages.is_asleep = self.is_asleep = True

    def wake(self) -> None:
        """See ops again. Number the new storages of modules, gradients and optimizer states."""
        self.is_asleep = False
        self._storages.wake()
        with disable_torch_function():
            self._context.wake()
        self.resume()

    def put_back(self) -> None:
        """Push the hooks on saved tensors again if they are off, before everything is switched off.

        Otherwise `SavedTensorHooks.stop` would not find them, and would remove hooks of the program.
        """
        if self.is_asleep:
            self.is_asleep = False
            self._saved.resume()

    def pause(self) -> None:
        """Stop seeing ops until `resume`, for example while torch.jit traces. Do nothing while asleep."""
        if not self.is_asleep:
            self._interceptor.stop()
            self._saved.pause()

    def resume(self) -> None:
        """See ops again. Do nothing while asleep."""
        if not self.is_asleep:
            self._saved.resume()
            self._interceptor.start(self._handler)


class Ended(NamedTuple):
    """A step that has ended.

    Attributes:
        end_ns: unix time of its end, in nanoseconds.
        recorded: whether all its ops are in the capture.
    """

    end_ns: int
    recorded: bool


class StepCurve:
    """Make the rows of the table `step_curve`.

    Attributes:
        step: number of the running step.
    """

    def __init__(self) -> None:
        self.step = 0
        self._start_ns = 0
        self._peak_bytes: dict[int, int] = {}
        self._floor_bytes: dict[int, int] = {}

    def begin(self, start_ns: int, live_bytes: Mapping[int, int]) -> None:
        """Begin the first step. `live_bytes` has the live bytes of each device at its beginning."""
        self._start_ns = start_ns
        self._peak_bytes = dict(live_bytes)
        self._floor_bytes = dict(live_bytes)

    def peak_bytes(self, device: int) -> int:
        """Return the highest live bytes of a device so far in the running step."""
        return self._peak_bytes.get(device, 0)

    def add(
        self,
        measured: MeasuredEvents,
        before_bytes: Mapping[int, int],
        now_bytes: Mapping[int, int],
        ended: Sequence[Ended],
    ) -> IntArray:
        """Return the rows of the steps that have ended.

        Args:
            measured: the events since the last call.
            before_bytes: live bytes by device before these events.
            now_bytes: live bytes by device after these events.
            ended: the steps that have ended since the last call.
        """
        ends_ns = np.array([step.end_ns for step in ended], dtype=np.int64)
        starts_ns = np.append(self._start_ns, ends_ns)[: len(ended)]
        numbers, recorded = (
            self.step + np.arange(len(ended)),
            np.array([step.recorded for step in ended], int),
        )
        found = [np.zeros((0, 8), dtype=np.int64)]
        for device in now_bytes:
            peaks, floors, lasts = self._of(measured, device, before_bytes.get(device, 0), ends_ns)
            columns = (
                numbers,
                np.full(len(ended), device),
                starts_ns,
                ends_ns,
                peaks,
                floors,
                lasts,
                recorded,
            )
            found.append(np.column_stack(columns))
        if ended:
            self.step += len(ended)
            self._start_ns = ended[-1].end_ns
        rows = np.concatenate(found)
        return rows[np.lexsort((rows[:, 1], rows[:, 0]))]

    def _of(
        self, measured: MeasuredEvents, device: int, before_bytes: int, ends_ns: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Return the highest, lowest and last live bytes of a device in each step that has ended.

        Note the highest and lowest live bytes of the running step for the next call.

        Args:
            measured: the events since the last call.
            device: string id of the device.
            before_bytes: its live bytes before these events.
            ends_ns: the ends of the steps.
        """
        here = measured.rows[:, 3] == device
        live, count = measured.live_bytes[here], len(ends_ns)
        # for each event, the index of its step; the running step has the index `count`
        step = np.searchsorted(ends_ns, measured.rows[here, 0], side="right")
        after = np.append(before_bytes, live)
        # at first the live bytes at the start of each step
        peaks = after[np.searchsorted(step, np.arange(count + 1), side="left")]
        floors = peaks.copy()
        peaks[0] = max(peaks[0], self._peak_bytes.get(device, before_bytes))
        floors[0] = min(floors[0], self._floor_bytes.get(device, before_bytes))
        np.maximum.at(peaks, step, live)
        np.minimum.at(floors, step, live)
        self._peak_bytes[device], self._floor_bytes[device] = int(peaks[-1]), int(floors[-1])
        return peaks[:count], floors[:count], after[np.searchsorted(step, np.arange(count), side="right")]


class _Mark(NamedTuple):
    """The end of a step, and whether the recorder saw all ops of the step."""

    at_ticks: int
    recorded: bool


class Steps:
    """Decide which steps are recorded, and which recorded steps are kept.

    | action of the schedule | keep | rows of the step |
    | --- | --- | --- |
    | NONE | any | none: the recorder sees no ops |
    | WARMUP | any | wait until the step ends, and are then left out, unless the step fails |
    | RECORD | all | are kept |
    | RECORD | peaks | wait until the step ends; they are kept if it fails or sets a new peak |

    A step whose rows wait is *held*. The allocator events that the live curve needs are kept for every step.

    Args:
        schedule: returns the action of each step; None records all steps.
        sleeper: switches the recorder off and on.
        flush: ends the allocator's window, and passes the new rows to `sift`.
        storages: the table of storages.
        op_counter: how many ops have started.
        clock: converts ticks to nanoseconds.
        keeps_peaks: whether to keep only the recorded steps that set a new peak or fail.

    Attributes:
        number: number of the running step.
    """

    def __init__(  # noqa: PLR0917  # parts of a session, each once
        self,
        schedule: Schedule | None,
        sleeper: Sleeper,
        flush: WeakMethod[Callable[[], None]],
        storages: Storages,
        op_counter: OpCounter,
        clock: Clock,
        *,
        keeps_peaks: bool,
    ) -> None:
        self._schedule = schedule or (lambda step: ProfilerAction.RECORD)
        self._keeps_peaks = keeps_peaks
        self._sleeper = sleeper
        self._flush = flush
        self._storages = storages
        self._op_counter = op_counter
        self._clock = clock
        self.number = 0
        self._slept = self._is_held = self._is_warmup = self._failed = False
        self._is_marked = False
        self._auto_marks = 0
        self._paced_by: weakref.ref[object] | None = None
        self._has_ended = False
        self._events_until_ns = 0
        self._marks: list[_Mark] = []
        self._switches: list[tuple[int, bool]] = []
        self._left_out = False
        self._held: dict[str, list[IntArray]] = {}
        self._unwritten: dict[str, list[IntArray]] = {}
        self._entry_count = 0
        self._entry = np.zeros((0, 2), dtype=np.int64)
        self._kept_peaks: dict[int, int] = {}
        self._kept_count = 0
        self._events = LiveEvents()
        self._curve = StepCurve()
        self._rows = KeptRows()
        self._last_flush = self._last_write = ticks()

    # -- the program's thread ---------------------------------------------------------------------------------------

    def begin(self, live_bytes: Mapping[int, tuple[int, bool]]) -> None:
        """Begin the first step.

        Args:
            live_bytes: for each device, its live bytes at the beginning of the block, and whether its allocator
                reported them.
        """
        for device, (nbytes, reports_frees) in live_bytes.items():
            self._events.enter(device, nbytes, reports_frees=reports_frees)
        self._entry_count = self._storages.count
        self._curve.begin(self._clock.to_ns(ticks()), self._events.live_bytes)
        self._flush_now()
        self._enter(self._schedule(0))

    def mark(self) -> None:
        """End the running step, because the program called `step()`."""
        is_late = not self._is_marked and self._auto_marks > 0
        self._is_marked = True
        if not is_late:
            self._end_step()
        elif self._marks:  # an optimizer's step has ended this step before, so only move the end
            self._marks[-1] = self._marks[-1]._replace(at_ticks=ticks())

    def optimizer_stepped(self, optimizer: object) -> None:
        """End the running step if the first optimizer has stepped and the program never called `step()`."""
        if self._paced_by is None:
            self._paced_by = weakref.ref(optimizer)
        if not self._is_marked and self._paced_by() is optimizer and current_graph_task_id() == NO_TASK:
            self._auto_marks += 1
            self._end_step()

    def op_failed(self) -> None:
        """Note that an op raised an error. The running step is kept because of it."""
        self._failed = True

    def end(self, *, failed: bool) -> None:
        """End the last step at the end of the block. `failed` is True if an exception ended the block."""
        self._failed |= failed
        self._has_ended = True
        self._marks.append(_Mark(ticks(), not self._slept))

    def _end_step(self) -> None:
        self._storages.record_deaths()
        action = self._schedule(self.number + 1)
        self._marks.append(_Mark(ticks(), not self._slept))
        self.number += 1
        switches = (
            self._is_held or self._holds(action) or self._sleeper.is_asleep != (action is ProfilerAction.NONE)
        )
        if switches or self._is_due():
            self._last_flush = ticks()
            self._flush_now()
        self._enter(action)

    def _is_due(self) -> bool:
        waited_ns = self._clock.duration_ns(ticks() - self._last_flush)
        return waited_ns > _WRITE_S * 1e9 or len(self._marks) > _MOST_MARKS

    def _holds(self, action: ProfilerAction) -> bool:
        return action is ProfilerAction.WARMUP or (self._keeps_peaks and action is not ProfilerAction.NONE)

    def _enter(self, action: ProfilerAction) -> None:
        self._failed, self._is_held = False, self._holds(action)
        self._is_warmup = action is ProfilerAction.WARMUP
        sleeps = action is ProfilerAction.NONE
        if sleeps and not self._sleeper.is_asleep:
            self._sleeper.sleep()
            self._switches.append((ticks(), True))
        elif self._sleeper.is_asleep and not sleeps:
            self._switches.append((ticks(), False))
            self._sleeper.wake()
        self._slept = sleeps

    def _flush_now(self) -> None:
        flush = self._flush()
        if flush is not None:
            flush()

    # -- any thread that flushes, one at a time ---------------------------------------------------------------------

    def placed(self, notes: list[Note]) -> list[Note]:
        """Return notes with their op numbers changed to those in the capture."""
        return [dataclasses.replace(note, op=self._rows.op(note.op)) for note in notes]

    def hear(self, rows: IntArray) -> None:
        """Keep rows of the table `allocator` until the next flush."""
        self._held.setdefault(_EVENTS, []).append(rows)

    def sift(self, rows: dict[str, Any]) -> dict[str, IntArray]:
        """Return the rows to write now. Other rows wait for a later call, or are left out.

        Args:
            rows: the new rows by table. Times are nanoseconds.
        """
        rows = {name: as_rows(table, len(RECORDED_BY_NAME[name].names)) for name, table in rows.items()}
        if len(rows.get("windows", ())):
            self._events_until_ns = int(rows["windows"][-1, 2])
        is_last, until_ns = self._has_ended, self._events_until_ns
        for name, table in rows.items():
            if len(table):
                self._held.setdefault(name, []).append(table)
        marks = list(self._marks)  # a copy, because the program may append to it meanwhile
        ends_ns = [self._clock.to_ns(mark.at_ticks) for mark in marks]
        # only steps that ended inside the known windows: all their allocator events are here
        count = len(ends_ns) if is_last else sum(end_ns <= until_ns for end_ns in ends_ns)
        if not self._is_held or count or is_last:
            ended = marks[:count]
            del self._marks[:count]
            ended_steps = [Ended(end_ns, mark.recorded) for end_ns, mark in zip(ends_ns, ended, strict=False)]
            held, self._held = {name: np.concatenate(tables) for name, tables in self._held.items()}, {}
            for name, table in self._sifted(held, ended_steps, until_ns, is_last=is_last).items():
                self._unwritten.setdefault(name, []).append(table)
        waited_ns = self._clock.duration_ns(ticks() - self._last_write)
        if (
            not is_last
            and waited_ns < _WRITE_S * 1e9
            and sum(map(len, self._unwritten.values())) < _MOST_MARKS
        ):
            return {}
        self._last_write = ticks()
        unwritten = self._unwritten
        self._unwritten = {}
        return _with_joined_windows({name: np.concatenate(tables) for name, tables in unwritten.items()})

    def _sifted(
        self, rows: dict[str, IntArray], ended: list[Ended], until_ns: int, *, is_last: bool
    ) -> dict[str, IntArray]:
        """Return the rows of the capture for new rows: the kept ones, their allocator events, and the live curve.

        Args:
            rows: the rows since the last call, by table.
            ended: the steps that have ended since the last call.
            until_ns: end of the last window of allocator events, in unix nanoseconds.
            is_last: whether the recording ends.
        """
        before_bytes = dict(self._events.live_bytes)
        measured = self._events.measure(self._with_deaths(rows))
        peaks = {device: self._curve.peak_bytes(device) for device in self._events.live_bytes}
        for device in np.unique(measured.rows[:, 3]).tolist():
            peaks[device] = max(
                peaks.get(device, 0), int(measured.live_bytes[measured.rows[:, 3] == device].max())
            )
        keep = not self._is_held or self._stays(peaks)
        ended = [step._replace(recorded=step.recorded and keep) for step in ended]
        curve = self._curve.add(measured, before_bytes, self._events.live_bytes, ended)
        switches = [(self._clock.to_ns(at_ticks), sleeps) for at_ticks, sleeps in list(self._switches)]
        passed = [each for each in switches if is_last or each[0] <= until_ns]
        del self._switches[: len(passed)]
        left_out = [self._left_out, *(sleeps for _, sleeps in passed)]
        self._left_out = left_out[-1]
        bounds_ns = np.array([at_ns for at_ns, _ in passed], dtype=np.int64)
        events = self._events.sift(
            measured, bounds_ns, np.array(left_out) if keep else np.ones(len(left_out), bool)
        )
        if is_last:
            events = np.concatenate([events, self._events.rest()])
        alive = self._alive(rows)
        kept = self._rows.sift(rows, self._op_counter[0], alive, keep=keep)
        if is_last and not keep:
            kept = together(kept, self._rows.sift({}, self._op_counter[0], alive, keep=True))
        self._rows.forget_all_but(watched.number for watched in list(self._storages.live.values()))
        return {**kept, _EVENTS: events, _CURVE: curve}

    def _alive(self, rows: Mapping[str, IntArray]) -> list[int]:
        """Return the numbers of the living storages, from the first storage whose birth is in `rows` or waits."""
        births, first = rows.get("births"), self._rows.first_waiting
        firsts = [] if first is None else [first]
        if births is not None and len(births):
            firsts.append(int(births[:, 0].min()))
        return [watched.number for watched in self._storages.newest(min(firsts))] if firsts else []

    def _stays(self, peaks: Mapping[int, int]) -> bool:
        """Return True if a held step is kept. It is kept if it failed or set a new peak, see the class.

        Args:
            peaks: its highest live bytes by device.
        """
        if self._failed:
            return True
        if self._is_warmup:
            return False
        ratio = 1.0 if self._kept_count < _FREE_PEAKS else _RISE_RATIO
        is_new = any(nbytes > ratio * self._kept_peaks.get(device, 0) for device, nbytes in peaks.items())
        if is_new:
            self._kept_count += 1
            self._kept_peaks |= {
                device: max(peaks[device], self._kept_peaks.get(device, 0)) for device in peaks
            }
        return is_new

    def _with_deaths(self, rows: dict[str, IntArray]) -> IntArray:
        """Return the allocator's events in the order of time. Remove them from `rows`.

        The allocator of some devices does not report a free of memory from before the block. There, the death of such a
        storage is added as an event at address 0.
        """
        events = rows.pop(_EVENTS, np.zeros((0, 7), dtype=np.int64))
        births, deaths = rows.get("births"), rows.get("deaths")
        if births is not None and not len(self._entry) and self._entry_count:
            entry = births[: self._entry_count]
            # device and bytes of each storage from before the block; a storage at address 0 has no memory
            self._entry = np.column_stack([entry[:, 5], np.where(entry[:, 3] != 0, entry[:, 4], 0)])
        if deaths is None:
            return events
        died = deaths[deaths[:, 0] < len(self._entry)]
        gone = self._entry[died[:, 0]]
        is_reported = self._events.frees_are_reported(gone[:, 0])
        extra = np.zeros((int((~is_reported).sum()), events.shape[1]), dtype=np.int64)
        extra[:, 0], extra[:, 2], extra[:, 3] = (
            died[~is_reported, 2],
            -gone[~is_reported, 1],
            gone[~is_reported, 0],
        )
        together = np.concatenate([events, extra])
        return together[np.argsort(together[:, 0], kind="stable")]


def _with_joined_windows(rows: dict[str, IntArray]) -> dict[str, IntArray]:
    """Join windows without a gap between them, because many steps make many windows. Adjust the events' windows."""
    windows = rows.get("windows")
    if windows is None or not len(windows):
        return rows
    first = np.flatnonzero(np.append(True, windows[1:, 1] != windows[:-1, 2]))
    joined = windows[first]
    joined[:, [2, 4]] = windows[np.append(first[1:] - 1, -1)][:, [2, 4]]
    rows["windows"] = joined
    if _EVENTS in rows:
        place = np.searchsorted(joined[:, 0], rows[_EVENTS][:, -1], side="right") - 1
        rows[_EVENTS][:, -1] = np.where(place < 0, rows[_EVENTS][:, -1], joined[np.maximum(place, 0), 0])
    return rows


def entry_bytes(
    storages: Storages, reported_bytes: Mapping[str, int], number_of: Callable[[str], int]
) -> Any:
    """Return the live bytes of each device at the beginning of the block, and whether its allocator reported them.

    If the allocator reports no bytes, count the bytes of the storages on the device.

    Args:
        storages: the table of storages.
        reported_bytes: the live bytes that allocators report, by the name of the device.
        number_of: returns the string id of the name.
    """
    found = {device: (storages.ledger.account(device).live_bytes, False) for device in storages.devices}
    return found | {number_of(name): (nbytes, True) for name, nbytes in reported_bytes.items()}
