"""The derived tables of a capture by device: no figure is a sum of devices."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from memwatch.analysis.derived_tables import DerivedTables
from memwatch.analysis.facts.devices import devices_of
from memwatch.device_names import CPU, kind_of
from memwatch.errors import MemwatchError

if TYPE_CHECKING:
    from memwatch.capture import Capture


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
        accelerators = [name for name in self.names if name != CPU]
        if CPU not in self.names:
            return next(iter(accelerators), CPU)
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

    def _of(self, name: str) -> DerivedTables:
        if name not in self._tables:
            self._tables[name] = DerivedTables(self.source, name)
        return self._tables[name]
