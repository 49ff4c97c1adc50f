"""The reading API, which the results of `memwatch.profile()` and `memwatch.load()` share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from memwatch.analysis import UnknownDeviceError
from memwatch.analysis.live_now import Iteration, LiveNow, StepsPeak
from memwatch.analysis.live_now import latest_iterations as iterations_of
from memwatch.analysis.live_now import live_now as live_now_of
from memwatch.analysis.live_now import peak_of_steps as peak_of_steps_of
from memwatch.analysis.reading import DeviceReading
from memwatch.capture import Capture
from memwatch.capture import load as load_capture
from memwatch.capture import save as save_capture
from memwatch.errors import CaptureError
from memwatch.gc_pause import pause_gc, resume_gc

if TYPE_CHECKING:
    from memwatch.analysis.compare import Comparison, PeakSites
    from memwatch.encoding import ReplayInputs
    from memwatch.report.plot import Plot


class Reading(DeviceReading):
    """A capture as its readers see it: totals in bytes, tables as DataFrames, summary, page and file.

    Every figure and every table is about one device, `device`; `on` gives the reading of another.
    """

    _replay_inputs: ReplayInputs | None = None

    def on(self, device: str) -> Reading:
        """Return the same reading of another device. Ops have the same numbers there, storages have others.

        Args:
            device: one of `devices`; `"cuda"` will do where only one of them had bytes.

        Raises:
            UnknownDeviceError: the device had no bytes in the block, or several of that name had.
        """
        other = Reading(self.capture)
        self._narrow(other, device)
        other._replay_inputs = self._replay_inputs
        return other

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the capture to one file; refuse to overwrite without `force`."""
        save_capture(self.capture, path, force=force)

    def summary(self, **options: Any) -> str:
        """Return a text that describes the parts of the peak; the options are those of the command `summary`."""
        from memwatch.report.terminal import summary

        # The analysis makes hundreds of thousands of objects and few cycles. With 20,000 modules in the capture, passes
        # of gc took 14 and 22 % of the time in two runs under load, in a process without other objects.
        pause = pause_gc()
        try:
            return summary(self, **options)
        finally:
            resume_gc(pause)

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
