"""The facts, tables, findings and ways of one device in a capture, each computed on first use.

The modules of the tables are imported on first use too: pandas alone takes longer to import than everything that a
live view needs.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from memwatch.analysis.facts.devices import devices_of
from memwatch.analysis.facts.facts import Facts
from memwatch.analysis.holders import Holders
from memwatch.analysis.saved_tensors import SavedTensors, find_saved_tensors
from memwatch.device_names import CPU, PINNED, kind_of
from memwatch.errors import MemwatchError

if TYPE_CHECKING:
    from collections.abc import Collection

    import pandas as pd

    from memwatch.analysis.findings.search import Findings
    from memwatch.analysis.ways.search import Way, Ways
    from memwatch.capture import Capture
    from memwatch.capture.columns import IntArray


class DerivedTables:
    """The derived tables of the schema, and the findings and ways.

    Args:
        capture: what was recorded.
        device: the device that the tables are about.
    """

    def __init__(self, capture: Capture, device: str) -> None:
        self.facts = Facts(capture, device)

    @cached_property
    def _saved_tensors(self) -> SavedTensors:
        return find_saved_tensors(self.facts)

    @cached_property
    def _holders(self) -> Holders:
        return Holders(self.facts, self._saved_tensors)

    @cached_property
    def ops(self) -> pd.DataFrame:
        """The table `ops`."""
        from memwatch.analysis.tables import ops

        return ops(self.facts)

    @cached_property
    def storages(self) -> pd.DataFrame:
        """The table `storages`."""
        from memwatch.analysis.tables import storages

        return storages(self.facts)

    @cached_property
    def uses(self) -> pd.DataFrame:
        """The table `uses`."""
        from memwatch.analysis.tables import uses

        return uses(self.facts)

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """The table `timeline`."""
        from memwatch.analysis.tables import timeline

        return timeline(self.facts)

    @cached_property
    def at_peak(self) -> pd.DataFrame:
        """The table `at_peak`."""
        return self.held_at(self.peak_event)

    @cached_property
    def saved(self) -> pd.DataFrame:
        """The table `saved`."""
        from memwatch.analysis.tables import saved

        return saved(self.facts, self._saved_tensors)

    @cached_property
    def modules(self) -> pd.DataFrame:
        """The table `modules`."""
        from memwatch.analysis.tables import modules

        return modules(self.facts, self.at_peak, self._saved_tensors)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The table `steps`."""
        from memwatch.analysis.tables import steps

        return steps(self.facts)

    @cached_property
    def process(self) -> pd.DataFrame:
        """The table `process`, if the device is the host."""
        from memwatch.analysis.tables import process

        return process(self.facts)

    @property
    def peak_event(self) -> int:
        """The event of the peak."""
        return self.facts.curve.peak_event

    @cached_property
    def findings(self) -> Findings:
        """The changes that would lower the peak."""
        # many modules, which a live view does not need
        from memwatch.analysis.findings.search import Findings

        return Findings(self.facts, self._holders, self._saved_tensors)

    @property
    def ways(self) -> list[Way]:
        """The changes that would lower the peak, simulated; the lowest peak first."""
        return self._found_ways.ways

    @property
    def split_left_out(self) -> str:
        """Why the batch is not split, although this would lower the peak; "" if nothing forbids it."""
        # without a backward there is nothing to split, and the search takes time
        return self._found_ways.split_left_out if self.facts.capture.rows("unpacks") else ""

    @property
    def step_left_out(self) -> str:
        """Why no step in the backward is simulated; "" if nothing forbids it."""
        return self._found_ways.step_left_out

    @cached_property
    def _found_ways(self) -> Ways:
        from memwatch.analysis.ways.search import find_ways

        return find_ways(self.facts, self._saved_tensors)

    def live_at(self, event: int) -> pd.DataFrame:
        """Return the rows of `storages` that were alive just after timeline row `event`."""
        from memwatch.analysis.tables import storages

        return storages(self.facts, np.flatnonzero(self.facts.alive_at(event)))

    def held_at(self, event: int) -> pd.DataFrame:
        """Return what the table `at_peak` would be if the peak were just after timeline row `event`."""
        from memwatch.analysis.tables import held_at

        return held_at(self.facts, self._holders, self.live_at(event), event)

    def part(
        self, name: str, columns: Collection[str], rows: IntArray | None = None, *, coded: bool = False
    ) -> pd.DataFrame:
        """Return some columns, and rows, of a table that has a row for each op, allocation or event.

        Args:
            name: `ops`, `storages`, `timeline` or `uses`.
            columns: the columns.
            rows: the rows; by default all.
            coded: whether texts are categories of pandas, a small number in each row.
        """
        from memwatch.analysis.tables import ops, storages, timeline, uses

        make = {"ops": ops, "storages": storages, "timeline": timeline, "uses": uses}
        return make[name](self.facts, rows, columns, coded=coded)


class UnknownDeviceError(MemwatchError):
    """The block had no bytes on the device that the caller named, or several devices match the name."""


class ByDevice:
    """The tables of each device of one capture, computed on first use.

    Attributes:
        source: the capture.
    """

    def __init__(self, capture: Capture) -> None:
        self.source = capture
        self._tables: dict[str, DerivedTables] = {}

    @cached_property
    def names(self) -> list[str]:
        """The devices that had bytes in the block, most at the peak first; `cpu` where none had."""
        seen = devices_of(self.source)
        if len(seen) <= 1:  # nothing to compare
            return seen or [CPU]
        peak_bytes = {name: self._of(name).facts.curve.peak_bytes for name in seen}
        used = [name for name in seen if peak_bytes[name]]
        return sorted(used, key=lambda name: (-peak_bytes[name], name == CPU, name)) or [CPU]

    @property
    def main(self) -> str:
        """Among the accelerators that the block used, the one with the highest peak; `cpu` if it used none.

        A device whose tensors only existed while the block ran does not count as used.
        """
        accelerators = [name for name in self.names if name not in (CPU, PINNED)]
        if CPU not in self.names:
            return next(iter([*accelerators, *self.names]), CPU)
        return next((name for name in accelerators if self._is_used(name)), CPU)

    def _is_used(self, name: str) -> bool:
        facts = self._of(name).facts
        return facts.curve.peak_increase_bytes > 0 or bool(facts.capture.rows("uses"))

    def resolve(self, device: str) -> str:
        """Return the name of a device; `cuda` stands for `cuda:0` where no other had bytes.

        Raises:
            UnknownDeviceError: no such device had bytes, or several had.
        """
        matching = [name for name in self.names if device in (name, kind_of(name))]
        if len(matching) == 1:
            return matching[0]
        problem = f"{device!r} names several devices" if matching else f"no bytes were recorded on {device!r}"
        raise UnknownDeviceError(f"{problem}; choose one of: {', '.join(self.names)}")

    def tables(self, device: str = "") -> DerivedTables:
        """Return the tables of a device, by default of the main device.

        Raises:
            UnknownDeviceError: the device had no bytes.
        """
        return self._of(self.resolve(device) if device else self.main)

    @property
    def host(self) -> DerivedTables:
        """The tables of the host, which may have had no bytes."""
        return self._of(CPU)

    def _of(self, name: str) -> DerivedTables:
        if name not in self._tables:
            self._tables[name] = DerivedTables(self.source, name)
        return self._tables[name]
