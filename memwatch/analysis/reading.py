"""The figures and tables of a capture, as the views in `memwatch.report` read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memwatch.analysis import ByDevice
from memwatch.analysis.live_now import last_seconds
from memwatch.analysis.observer import (
    not_memory,
    observer_effects,
    other_threads,
    unrecorded,
    unrecorded_steps,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import pandas as pd

    from memwatch.analysis.derived_tables import DerivedTables
    from memwatch.analysis.facts.biographies import CutOff
    from memwatch.analysis.facts.places import Call
    from memwatch.analysis.facts.reserved import ReservedBytes
    from memwatch.analysis.findings.finding import Finding
    from memwatch.capture import Capture
    from memwatch.own_code import CodeOwner

_UNFINISHED = (
    "The block has not ended in this capture: the program was killed or still runs. "
    "It holds everything up to the last flush."
)
_NOTHING_FLUSHED = "That is nothing yet. A process that is killed in its first seconds leaves no more."


class DeviceReading:
    """A capture as its readers see it, for one device: totals in bytes, and tables as DataFrames.

    `memwatch.reading.Reading` adds the views: the summary, the page and the figures.
    """

    _recorded: Capture
    _read: ByDevice | None = None
    _device: str = ""

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

    def on(self, device: str) -> DeviceReading:
        """Return the reading of another device."""
        other = DeviceReading(self.capture)
        self._narrow(other, device)
        return other

    def _narrow(self, other: DeviceReading, device: str) -> None:
        other._read, other._device = self._by_device, self._by_device.resolve(str(device))

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
    def most_finding_bytes(self) -> int:
        """Bytes that no finding can exceed. They are known without a search for findings."""
        from memwatch.analysis.findings.search import most_bytes

        return most_bytes(self._tables.facts)

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
        found.attrs["step_left_out"] = self._tables.step_left_out
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
        sentences = (_UNFINISHED, _NOTHING_FLUSHED if is_empty else "", last_seconds(self._tables.facts))
        return " ".join(filter(None, sentences))

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

    def stack(self, stack: int) -> list[Call]:
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
