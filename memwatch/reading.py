"""The reading API, which the results of `memwatch.profile()` and `memwatch.load()` share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from memwatch.analysis import ByDevice, UnknownDeviceError
from memwatch.analysis.live_now import Iteration, LiveNow, StepsPeak, last_seconds
from memwatch.analysis.live_now import latest_iterations as iterations_of
from memwatch.analysis.live_now import live_now as live_now_of
from memwatch.analysis.live_now import peak_of_steps as peak_of_steps_of
from memwatch.analysis.observer import (
    not_memory,
    observer_effects,
    other_threads,
    unrecorded,
    unrecorded_steps,
)
from memwatch.capture import Capture
from memwatch.capture import load as load_capture
from memwatch.capture import save as save_capture
from memwatch.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import pandas as pd

    from memwatch.analysis.compare import Comparison, PeakSites
    from memwatch.analysis.derived_tables import DerivedTables
    from memwatch.analysis.facts.endings import CutOff
    from memwatch.analysis.facts.reserved import ReservedBytes
    from memwatch.analysis.findings.finding import Finding
    from memwatch.encoding import ReplayInputs
    from memwatch.own_code import CodeOwner
    from memwatch.report.plot import Plot

_UNFINISHED = (
    "The block has not ended in this capture: the program was killed or still runs. "
    "It holds everything up to the last flush."
)
_NOTHING_FLUSHED = "That is nothing yet. A process that is killed in its first seconds leaves no more."


class Reading:
    """A capture as its readers see it: totals in bytes, tables as DataFrames, summary, page and file.

    Every figure and every table is about one device, `device`; `on` gives the reading of another.
    """

    _recorded: Capture
    _read: ByDevice | None = None
    _device: str = ""
    _replay_inputs: ReplayInputs | None = None

    def __init__(self, capture: Capture) -> None:
        self._recorded = capture

    @property
    def capture(self) -> Capture:
        """The recorded tables."""
        return self._recorded

    @property
    def _by_device(self) -> ByDevice:
        if self._read is None or self._read.source is not self.capture:
            self._read = ByDevice(self.capture)
        return self._read

    @property
    def _tables(self) -> DerivedTables:
        return self._by_device.tables(self._device)

    @property
    def devices(self) -> list[str]:
        """The devices that had bytes in the block, most at the peak first; `cpu` where none had."""
        return list(self._by_device.names)

    @property
    def device(self) -> str:
        """The device that figures and tables are about: the accelerator if the block used one, else `cpu`."""
        return self._device or self._by_device.main

    def on(self, device: str) -> Reading:
        """Return the same reading of another device. Ops have the same numbers there, storages have others.

        Args:
            device: one of `devices`; `"cuda"` will do where only one of them had bytes.

        Raises:
            UnknownDeviceError: the device had no bytes in the block, or several of that name had.
        """
        other = Reading(self.capture)
        other._read, other._device = self._by_device, self._by_device.resolve(str(device))
        other._replay_inputs = self._replay_inputs
        return other

    @property
    def peak_bytes(self) -> int:
        """Most live bytes at one instant."""
        return self._tables.facts.curve.peak_bytes

    @property
    def baseline_bytes(self) -> int:
        """Bytes of the storages that were live when the block was entered."""
        return self._tables.facts.curve.baseline_bytes

    @property
    def reserved(self) -> ReservedBytes | None:
        """The bytes that an accelerator's allocator reserved at the peak; None for an allocator without a cache."""
        return self._tables.facts.reserved

    @property
    def peak_increase_bytes(self) -> int:
        """Most bytes, allocated inside the block, that were live at one instant: the allocator's own measure."""
        return self._tables.facts.curve.peak_increase_bytes

    @property
    def ops(self) -> pd.DataFrame:
        """The ops, in order, on whichever device they ran; columns in `memwatch.capture.derived`."""
        return self._tables.ops

    @property
    def storages(self) -> pd.DataFrame:
        """Every piece of memory that was live at some time, named or not."""
        return self._tables.storages

    @property
    def uses(self) -> pd.DataFrame:
        """Which op touched which storage."""
        return self._tables.uses

    @property
    def timeline(self) -> pd.DataFrame:
        """Every allocation and free, with the live bytes after it."""
        return self._tables.timeline

    @property
    def at_peak(self) -> pd.DataFrame:
        """The storages that were live at the peak, largest first."""
        return self._tables.at_peak

    @property
    def peak_event(self) -> int:
        """The row of `timeline` that `at_peak` describes. If several are equally high, the first with a sample."""
        return self._tables.peak_event

    @property
    def saved(self) -> pd.DataFrame:
        """The tensors that autograd saved for backward."""
        return self._tables.saved

    @property
    def modules(self) -> pd.DataFrame:
        """Bytes by module."""
        return self._tables.modules

    @property
    def steps(self) -> pd.DataFrame:
        """Peak and duration of every iteration."""
        return self._tables.steps

    @property
    def process(self) -> pd.DataFrame:
        """The memory of the whole process at some times, whichever device this reading is about."""
        return self._by_device.host.process

    @property
    def findings(self) -> list[Finding]:
        """The changes that would lower the peak, largest first."""
        return self._tables.findings.large

    @property
    def small_findings(self) -> list[Finding]:
        """Further changes, largest first, that would lower the peak by less: by 1 to 5 % of its increase."""
        return self._tables.findings.small

    @property
    def ways(self) -> pd.DataFrame:
        """The changes that would lower the peak, simulated from this recording; the lowest peak first."""
        from memwatch.analysis.tables import ways
        from memwatch.analysis.ways.checkpointing import changed_arguments, changed_attributes, grown_lists

        found = ways(self._tables.ways)
        tree = self._tables.facts.places.module_tree
        for name, of_modules in (
            ("changed_arguments", changed_arguments),
            ("grown_lists", grown_lists),
            ("changed_attributes", changed_attributes),
        ):
            changed = of_modules(self._tables.facts).items()
            found.attrs[name] = {tree.names[module]: text for module, text in changed}
        found.attrs["of_first_model"] = [way.is_of_first_model for way in self._tables.ways]
        return found

    @property
    def cut_off(self) -> CutOff | None:
        """Where the recording ended before the program's work did; None for a whole recording."""
        return self._tables.facts.cut_off

    @property
    def meta(self) -> dict[str, Any]:
        """Facts about the recording: versions, argv, threads, interceptor."""
        return self.capture.meta

    @property
    def notes(self) -> list[tuple[str, str]]:
        """The limits of this recording, and its effects on the program: (kind, sentence)."""
        recorded = [] if self.meta.get("complete", True) else [("unfinished", self._unfinished)]
        recorded += [("steps", text) for text in (unrecorded_steps(self._tables.facts),) if text]
        recorded += [(note.kind, note.text) for note in self.capture.notes]
        found = (("unseen", unrecorded(self._tables.facts)), ("not memory", not_memory(self._tables.facts)))
        from memwatch.analysis.ways.checkpointing import left_out as checkpoints_left_out
        from memwatch.analysis.ways.micro_batches import left_out as parts_left_out

        facts = self._tables.facts
        left_out = checkpoints_left_out(facts), parts_left_out(facts), self._tables.split_left_out
        recorded += [("ways", text) for text in left_out if text]
        recorded += [("threads", text) for text in other_threads(self._tables.facts)]
        recorded += [(kind, effect.text) for kind, effect in found if effect is not None]
        return recorded + [("observer", effect.text) for effect in observer_effects(self._tables.facts)]

    @property
    def _unfinished(self) -> str:
        is_empty = not len(self.capture.tables["ops"]["stack"]) and not self.peak_bytes
        told = (_UNFINISHED, _NOTHING_FLUSHED if is_empty else "", last_seconds(self._tables.facts))
        return " ".join(filter(None, told))

    def part(
        self,
        table: str,
        columns: Collection[str],
        rows: Sequence[int] | pd.Index[int] | None = None,
        *,
        coded: bool = False,
    ) -> pd.DataFrame:
        """Return some columns and rows of a table. The whole table of a long run would take much memory.

        Only read the result: pandas may refuse changes.

        Args:
            table: `ops`, `storages`, `timeline` or `uses`.
            columns: names of columns.
            rows: numbers of rows; by default all.
            coded: whether columns of repeated texts are categories of pandas, which have a small number in each row.
        """
        return self._tables.part(table, columns, None if rows is None else np.asarray(rows), coded=coded)

    def live_at(self, event: int) -> pd.DataFrame:
        """Return the storages alive just after row `event` of the timeline."""
        return self._tables.live_at(event)

    def held_at(self, event: int) -> pd.DataFrame:
        """Return the live memory just after row `event` of the timeline and its holders, as `at_peak` does."""
        return self._tables.held_at(event)

    def stack(self, stack: int) -> list[tuple[str, int, str, bool]]:
        """Return the frames of a call stack, innermost first.

        Args:
            stack: number of the stack, as in column `stack` of `ops` and `storages`.

        Returns:
            File, line, function, and whether the code is the program's or a package's: not torch's or Python's.
        """
        return list(self._tables.facts.call_stacks.frames(stack))

    def code_owners(self, stack: int) -> list[CodeOwner]:
        """Return whose code each frame of a call stack is, in the order of `stack()`."""
        return self._tables.facts.call_stacks.owners(stack)

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the capture to one file; refuse to overwrite without `force`."""
        save_capture(self.capture, path, force=force)

    def summary(self, **options: Any) -> str:
        """Return a text that describes the parts of the peak; the options are those of the command `summary`."""
        from memwatch.report.terminal import summary

        return summary(self, **options)

    def _repr_html_(self) -> str:
        """Show the summary in a notebook."""
        from memwatch.report.console import NOTEBOOK_WIDTH, fragment

        return fragment(self.summary(width=NOTEBOOK_WIDTH, color=True))

    @property
    def plot(self) -> Plot:
        """Figures by matplotlib: `prof.plot.timeline()`, `.peak()`, `.steps()`; each returns its axes."""
        from memwatch.report.plot import Plot

        return Plot(self)

    def report(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write the self-contained HTML page."""
        from memwatch.report import html

        html(self, path, **options)


def load(path: str | os.PathLike[str]) -> Reading:
    """Return the reading of a capture file, in any process; the program that made it is not needed.

    Args:
        path: a file written by `profile(path=...)`, `save` or `memwatch run`, finished or not.

    Returns:
        The same reading API that `profile()` gives.

    Raises:
        CaptureError: the file is missing, no capture, damaged, or of another format than this memwatch reads.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise CaptureError(f"{path!r} is not a path; name a capture, a file that `memwatch run` wrote")
    return Reading(load_capture(path))


def recorded_on_device(reading: Reading) -> Capture:
    """Return the recorded tables as the device of a reading sees them: storages have their numbers in `storages`."""
    return reading._tables.facts.capture


def sites_at_peak(reading: Reading) -> PeakSites:
    """Return the part of a reading that a comparison needs.

    Then the reading can be freed: a long run's takes gigabytes.
    """
    from memwatch.analysis.compare import peak_sites

    return peak_sites(reading._tables)


def compare_peaks(old: PeakSites, new: PeakSites) -> Comparison:
    """Compare the peaks of two readings of one device.

    Args:
        old: the peak to compare with.
        new: the peak that is judged.

    Raises:
        UnknownDeviceError: they are about different devices.
    """
    from memwatch.analysis.compare import compare

    if old.device != new.device:
        raise UnknownDeviceError(
            f"the old capture is about {old.device} and the new one about {new.device}; name one device for both, "
            f"such as --device {new.device}"
        )
    return compare(old, new)


def latest_iterations(reading: Reading, count: int) -> list[Iteration]:
    """Return the latest iterations of a program that may still run, at most `count`, the earliest of them first."""
    return iterations_of(reading._tables.facts, count)


def live_now(reading: Reading, count: int) -> LiveNow:
    """Return the curve so far and the storages that are alive after its last event, with the `count` largest."""
    return live_now_of(reading._tables.facts, count)


def peak_of_steps(reading: Reading, first: int) -> StepsPeak | None:
    """Return the highest peak of the marked steps from one on; None before the first mark."""
    return peak_of_steps_of(reading._tables.facts, first)
